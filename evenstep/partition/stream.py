"""The stream of a partition: its samples traversal after traversal, without an end.

Which sample is the k-th of it depends on nothing but the size of the partition, a seed and k. So
batches of any sizes can be cut from it: a sample is used once in each traversal, whoever decides
how many are used at a time, and fetched ahead is never fetched in vain.
"""

from __future__ import annotations

import numpy as np

from evenstep.core.arrays import Ints
from evenstep.core.dealing import shuffled

Key = tuple[int, int]
"""(number of the traversal, position in the partition)."""

_REMEMBERED = 4
"""Orders that are kept: of the traversal in use, and of those that are fetched ahead."""


class Stream:
    """Says which samples of a partition come when.

    >>> stream = Stream(3, seed=0)
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
                shuffled(self._size, self._seed, number) if self._shuffle else np.arange(self._size)
            )
        return self._orders[traversal]
