"""Partitions on disk: a worker's own samples as memory-mapped rows with an index.

`docs/partitions.md` describes the format.
"""

from evenstep.partitions.store.agent import Agent
from evenstep.partitions.store.creation import create_partitions
from evenstep.partitions.store.migration import (
    carry_out,
    finish,
    open_tasks,
    plan_tasks,
    settle_lost,
)
from evenstep.partitions.store.partition import Partition
from evenstep.partitions.store.verification import Verification, verify

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
