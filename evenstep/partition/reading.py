"""Reading: which partitions all workers have, and how far each has come in its own.

It follows from the batch sizes of all workers, which every worker knows: nobody has to ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evenstep.core.arrays import Ints, frozen
from evenstep.partition.stream import Stream
from evenstep.partition.traversals import Traversals


@dataclass(frozen=True, eq=False)
class Reading:
    """The partitions of all workers, and what was read of them since they last changed.

    >>> reading = Reading.of([3, 2], [7, 8]).advance(np.array([4, 1]))
    >>> reading.traversals.counts.round(1)
    array([1.3, 0.5])
    >>> after = reading.anew([2, 3], [9, 6])
    >>> after.first, after.consumed
    (2, array([0, 0]))
    """

    sizes: Ints
    """Samples in each worker's partition."""
    digests: Ints
    """What tells the samples of each partition from others."""
    consumed: Ints
    """Samples that each worker has processed, repetitions counted."""
    first: int = 0
    """The number of the traversal that all began with."""

    @classmethod
    def of(cls, sizes: Any, digests: Any) -> Reading:
        """Return the state of partitions of which nothing was read."""
        sizes = frozen(sizes)
        return cls(sizes, frozen(digests), frozen(np.zeros_like(sizes)))

    def advance(self, batch_sizes: Ints) -> Reading:
        """Return the state after one more iteration."""
        return replace(self, consumed=frozen(self.consumed + batch_sizes))

    def anew(self, sizes: Any, digests: Any) -> Reading:
        """Return the state once partitions have changed: all begin, in orders not used yet."""
        begun = int(np.max(-(-self.consumed // self.sizes)))
        return replace(Reading.of(sizes, digests), first=self.first + begun)

    def has(self, sizes: Ints, digests: Ints) -> bool:
        """Whether these are the partitions."""
        same = np.array_equal(self.sizes, sizes) and np.array_equal(self.digests, digests)
        return bool(same)

    @property
    def traversals(self) -> Traversals:
        """How often workers have gone through their partitions."""
        return Traversals(self.sizes, self.consumed)

    def stream(self, worker: int, seed: int, shuffle: bool) -> Stream:
        """Return the samples of a worker in the order in which they are used."""
        return Stream(int(self.sizes[worker]), seed, self.first, shuffle)

    def state(self) -> dict[str, Any]:
        """Return all of it in plain numbers, for a checkpoint."""
        arrays = {name: getattr(self, name).tolist() for name in ("sizes", "digests", "consumed")}
        return {**arrays, "first": self.first}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Reading:
        """Return what `state` wrote."""
        arrays = {name: frozen(state[name]) for name in ("sizes", "digests", "consumed")}
        return cls(**arrays, first=int(state["first"]))
