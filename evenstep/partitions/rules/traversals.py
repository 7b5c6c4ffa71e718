"""Traversals: how often workers go through their partitions, in which order, and how far they are.

Where a worker has more traversals than others, its samples weigh more in what is learned (Section
3.5 of the paper). Everything here follows from the batch sizes of all workers, which every worker
knows, so that nothing has to be exchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from evenstep.core import UNLIMITED, Floats, Ints, SavedState, frozen, require
from evenstep.core.dealing import numpy_order
from evenstep.errors import InvalidSetting

Key = tuple[int, int]
"""(number of the traversal, position in the partition)."""

_REMEMBERED = 4
"""Orders that are kept: of the traversal in use, and of those that are fetched ahead."""


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
        """Return the statistics of partitions that have not been read yet."""
        sizes = frozen(sizes)
        return cls(sizes, np.zeros_like(sizes))

    def consume(self, batch_sizes: ArrayLike) -> Traversals:
        """Return the statistics after one more iteration, or several added up."""
        return Traversals(self.sizes, self.consumed + frozen(batch_sizes))

    @property
    def counts(self) -> Floats:
        """How often each partition was traversed: consumed / size."""
        return self.consumed / self.sizes

    @property
    def gap(self) -> float:
        """The largest count minus the smallest."""
        return float(np.ptp(self.counts))


class SampleStream:
    """The samples of a partition in the order of their use, traversal after traversal, for ever.

    The k-th sample depends on nothing but the size of the partition, a seed and k. So batches of
    any size can be cut from the stream: each sample is used once per traversal whatever the batch
    sizes are, and a sample that was fetched ahead is always used.

    >>> stream = SampleStream(3, seed=0)
    >>> stream.keys(0, 4)
    [(0, 2), (0, 0), (0, 1), (1, 2)]
    >>> stream.keys(2, 4)
    [(0, 1), (1, 2)]
    """

    def __init__(self, size: int, seed: int, first: int = 0, shuffle: bool = True) -> None:
        """`first` is the number of the first traversal: another number, another order."""
        self._size, self._seed, self._first = size, seed, first
        self._shuffle = shuffle
        self._orders: dict[int, Ints] = {}

    def keys(self, begin: int, end: int) -> list[Key]:
        """Return the keys of some samples, counted from the beginning of the stream."""
        keys: list[Key] = []
        while begin < end:
            traversal, offset = divmod(begin, self._size)
            part = self._order(traversal)[offset : offset + end - begin]
            keys += [(self._first + traversal, position) for position in part.tolist()]
            begin += len(part)
        return keys

    def _order(self, traversal: int) -> Ints:
        if traversal not in self._orders:
            if len(self._orders) == _REMEMBERED:
                del self._orders[next(iter(self._orders))]
            number = self._first + traversal
            self._orders[traversal] = (
                numpy_order(self._size, self._seed, number)
                if self._shuffle
                else np.arange(self._size)
            )
        return self._orders[traversal]


@dataclass(frozen=True, eq=False)
class ReadingPosition:
    """The partitions of all workers, and how far each worker has read since they last changed.

    >>> position = ReadingPosition.of([3, 2], [7, 8]).advance(np.array([4, 1]))
    >>> position.traversals.counts.round(1)
    array([1.3, 0.5])
    >>> after = position.restart([2, 3], [9, 6])
    >>> after.first, after.consumed
    (2, array([0, 0]))
    """

    sizes: Ints
    """Samples in each worker's partition."""
    digests: Ints
    """Digests of the samples in each partition."""
    consumed: Ints
    """Samples that each worker has processed, repetitions counted."""
    first: int = 0
    """The number of the traversal that all workers began with."""

    @classmethod
    def of(cls, sizes: Any, digests: Any) -> ReadingPosition:
        """Return the position before anything was read."""
        sizes = frozen(sizes)
        return cls(sizes, frozen(digests), frozen(np.zeros_like(sizes)))

    def advance(self, batch_sizes: Ints) -> ReadingPosition:
        """Return the position after one more iteration."""
        return replace(self, consumed=frozen(self.consumed + batch_sizes))

    def restart(self, sizes: Any, digests: Any) -> ReadingPosition:
        """Return the position after partitions have changed: the start, in orders not used yet."""
        begun = int(np.max(-(-self.consumed // self.sizes)))
        return replace(ReadingPosition.of(sizes, digests), first=self.first + begun)

    def has(self, sizes: Ints, digests: Ints) -> bool:
        """Whether the partitions have these sizes and digests."""
        same = np.array_equal(self.sizes, sizes) and np.array_equal(self.digests, digests)
        return bool(same)

    @property
    def traversals(self) -> Traversals:
        """How often workers have traversed their partitions."""
        return Traversals(self.sizes, self.consumed)

    def stream(self, worker: int, seed: int, shuffle: bool) -> SampleStream:
        """Return the samples of a worker in the order of their use."""
        return SampleStream(int(self.sizes[worker]), seed, self.first, shuffle)

    def state(self) -> dict[str, Any]:
        """Return the position in plain numbers, for a checkpoint."""
        arrays = {name: getattr(self, name).tolist() for name in ("sizes", "digests", "consumed")}
        return {**arrays, "first": self.first}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> ReadingPosition:
        """Return the position that `state` wrote, or raise StateFileError."""
        saved = SavedState("a reading position", state, "sizes", "digests", "consumed", "first")
        count = len(saved.items("sizes"))
        sizes, consumed = saved.wholes("sizes", count, least=1), saved.wholes("consumed", count)
        digests = saved.wholes("digests", count, least=-(2**63))
        if not count or np.any(sizes > UNLIMITED) or np.any(consumed > UNLIMITED):
            raise saved.wrong("sizes", "those of one or more partitions, and at most 2^53")
        first = saved.whole("first", most=UNLIMITED)
        return cls(frozen(sizes), frozen(digests), frozen(consumed), first)


def counted_samples(partition_sizes: Ints, batch_sizes: Ints) -> Ints:
    """Return the importance weights of workers whose samples cannot move, as numbers of samples.

    A worker's mean gradient estimates that of its partition, whatever its batch size. Weighted by
    ``n_i / N``, samples held over samples of all, the sum estimates the gradient of all samples.
    A worker with batch size 0 has no gradient: the other workers then count for all.

    >>> counted_samples(np.array([100, 300]), np.array([48, 16]))
    array([100, 300])
    >>> counted_samples(np.array([100, 300]), np.array([64, 0]))
    array([100,   0])
    """
    return np.where(batch_sizes > 0, partition_sizes, 0)
