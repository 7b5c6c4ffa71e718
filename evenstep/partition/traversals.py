"""Traversals: how often each worker has gone through its partition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evenstep.core.arrays import Floats, Ints, frozen, require
from evenstep.errors import InvalidSetting


@dataclass(frozen=True, eq=False)
class Traversals:
    """The samples that each worker has consumed since the statistics were reset.

    >>> traversals = Traversals.of([100, 100]).consume([20, 60]).consume([20, 60])
    >>> traversals.counts
    array([0.4, 1.2])
    >>> round(traversals.gap, 3)
    0.8
    """

    sizes: Ints
    """Samples in each worker's partition."""
    consumed: Ints
    """Samples that each worker has processed, repetitions counted."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", frozen(self.sizes))
        object.__setattr__(self, "consumed", frozen(self.consumed))
        if self.sizes.ndim != 1 or self.sizes.shape != self.consumed.shape or not len(self.sizes):
            raise InvalidSetting(
                "traversals must have one size and one count per worker, "
                f"got shapes {self.sizes.shape} and {self.consumed.shape}"
            )
        require(self.sizes >= 1, "partition size must be >= 1", self.sizes)
        require(self.consumed >= 0, "samples consumed must be >= 0", self.consumed)

    @classmethod
    def of(cls, sizes: ArrayLike) -> Traversals:
        """Return the statistics of partitions that nobody has read from yet."""
        sizes = frozen(sizes)
        return cls(sizes, np.zeros_like(sizes))

    def consume(self, batch_sizes: ArrayLike) -> Traversals:
        """Return the statistics after one more iteration, or several added up."""
        return Traversals(self.sizes, self.consumed + frozen(batch_sizes))

    @property
    def counts(self) -> Floats:
        """How often each partition was gone through: consumed / size."""
        return self.consumed / self.sizes

    @property
    def gap(self) -> float:
        """How far the count that is largest is ahead of the smallest."""
        return float(np.ptp(self.counts))
