"""Partitions: each worker has samples of its own, which migrate to follow batch sizes.

Where a worker reads only a partition of its own, one with larger batches traverses its samples more
often than the others (Section 3.5 of the paper). Four packages, each of which uses only those
before it:

    rules      when samples move, how many, and which; pure
    handover   the protocol that moves them from one partition to another; pure
    store      partitions on disk
    agents     migrations between machines: agent processes and the manager that drives them

`docs/partitions.md` shows how to use them. The agents need the extra `manager` and are not loaded
from here.
"""

from evenstep.partitions.rules.choice import assign_samples, choose_samples
from evenstep.partitions.rules.partitioning import deal_by_class, deal_mixed
from evenstep.partitions.rules.plan import MigrationPlan, Transfer, plan_migration, target_sizes
from evenstep.partitions.rules.rule import MigrationRule, MigrationState
from evenstep.partitions.rules.traversals import Traversals
from evenstep.partitions.store.creation import create_partitions
from evenstep.partitions.store.partition import Partition
from evenstep.partitions.store.verification import Verification, verify

__all__ = [
    "MigrationPlan",
    "MigrationRule",
    "MigrationState",
    "Partition",
    "Transfer",
    "Traversals",
    "Verification",
    "assign_samples",
    "choose_samples",
    "create_partitions",
    "deal_by_class",
    "deal_mixed",
    "plan_migration",
    "target_sizes",
    "verify",
]
