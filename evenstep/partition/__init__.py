"""Partitions: when workers' own samples migrate, how many, which, and how they are handed over.

Where each worker can read nothing but a partition of its own, one that runs larger batches goes
through its samples more often than others do (Section 3.5 of the paper). This package decides when
samples move, how many, which, and by what protocol; it does no I/O (`evenstep.partition_store`
does) and reads no clock.
"""

from evenstep.partition.choice import assign_samples, choose_samples
from evenstep.partition.rule import MigrationRule, MigrationState
from evenstep.partition.transfers import MigrationPlan, Transfer, plan_migration, target_sizes
from evenstep.partition.traversals import Traversals

__all__ = [
    "MigrationPlan",
    "MigrationRule",
    "MigrationState",
    "Transfer",
    "Traversals",
    "assign_samples",
    "choose_samples",
    "plan_migration",
    "target_sizes",
]
