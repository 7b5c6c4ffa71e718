"""Partitions on disk: a worker's own samples as memory-mapped rows with an index.

`docs/partitions.md` describes the format. The decisions and the protocol are in
`evenstep.partition`; here is what reads and writes.
"""

from evenstep.partition_store.agent import Agent
from evenstep.partition_store.creating import create_partitions
from evenstep.partition_store.migrating import (
    carry_out,
    finish,
    open_tasks,
    plan_tasks,
    settle_lost,
)
from evenstep.partition_store.partition import Partition
from evenstep.partition_store.verifying import Verification, verify

__all__ = [
    "Agent",
    "Partition",
    "Verification",
    "carry_out",
    "create_partitions",
    "finish",
    "open_tasks",
    "plan_tasks",
    "settle_lost",
    "verify",
]
