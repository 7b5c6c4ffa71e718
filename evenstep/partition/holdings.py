"""Holdings: which samples each worker holds, as arrays of their numbers, and nothing on a disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.core.arrays import Ints, frozen
from evenstep.errors import InvalidSetting
from evenstep.partition.choice import assign_samples
from evenstep.partition.transfers import MigrationPlan


@dataclass(frozen=True, eq=False)
class Holdings:
    """The partitions of all workers; no sample is in two of them.

    >>> holdings = Holdings((np.arange(4), np.arange(4, 8)))
    >>> holdings.sizes
    array([4, 4])
    """

    partitions: Sequence[Ints]
    """The samples of each worker."""

    def __post_init__(self) -> None:
        partitions = tuple(frozen(samples) for samples in self.partitions)
        object.__setattr__(self, "partitions", partitions)
        if not partitions:
            raise InvalidSetting("holdings must be those of at least 1 worker, got none")
        for worker, samples in enumerate(partitions):
            if len(samples) == 0:
                raise InvalidSetting(f"partition of worker {worker} must not be empty, got none")
        samples, counts = np.unique(np.concatenate(partitions), return_counts=True)
        if counts.max() > 1:
            twice = int(samples[np.argmax(counts > 1)])
            raise InvalidSetting(f"a sample must be held once, got {twice} twice or more often")

    @property
    def sizes(self) -> Ints:
        """How many samples each worker holds."""
        return np.array([len(samples) for samples in self.partitions], dtype=np.int64)

    def migrate(self, plan: MigrationPlan, seed: int, labels: Ints | None = None) -> Holdings:
        """Return who holds what once the plan is carried out.

        Which samples move is drawn by seed; with labels, those of the whole data set, so that
        giver and receiver come out mixed.

        >>> from evenstep.partition.transfers import plan_migration
        >>> holdings = Holdings((np.arange(4), np.arange(4, 8)))
        >>> after = holdings.migrate(plan_migration(holdings.sizes, [2, 6]), seed=0)
        >>> [samples.tolist() for samples in after.partitions]
        [[1, 3], [0, 2, 4, 5, 6, 7]]
        """
        kinds = None if labels is None else [labels[samples] for samples in self.partitions]
        moved = assign_samples(plan.transfers, self.partitions, seed, kinds)
        partitions = list(self.partitions)
        for transfer, samples in zip(plan.transfers, moved, strict=True):
            giver, receiver = transfer.giver, transfer.receiver
            partitions[giver] = np.setdiff1d(partitions[giver], samples)
            partitions[receiver] = np.union1d(partitions[receiver], samples)
        return Holdings(tuple(partitions))
