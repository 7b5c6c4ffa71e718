"""Who is who, while members join and leave."""

from __future__ import annotations

import numpy as np

from evenstep.core.arrays import Ints
from evenstep.core.rows import remap_rows


class Roster:
    """Numbers workers for life, so that the rows of a training find their workers again.

    >>> roster = Roster(3)
    >>> before = roster.numbers
    >>> roster.remap(np.array([2, -1, 0]))
    >>> roster.rows_in(before)
    array([ 2, -1,  0])
    """

    def __init__(self, num_workers: int) -> None:
        self._next = 0
        self.numbers = self._new(num_workers)

    def remap(self, keep: Ints) -> None:
        self.numbers = remap_rows(self.numbers, self._new(len(keep)), keep)

    def renew(self) -> None:
        """Give everybody a new number: whatever is under way is about others."""
        self.numbers = self._new(len(self.numbers))

    def rows_in(self, numbers: Ints) -> Ints:
        """Return the row of each worker in an array of `numbers`, -1 where it is not in there."""
        order = np.argsort(numbers)
        row = order[np.searchsorted(numbers, self.numbers, sorter=order).clip(max=len(order) - 1)]
        return np.where(numbers[row] == self.numbers, row, -1)

    def _new(self, num_workers: int) -> Ints:
        first, self._next = self._next, self._next + num_workers
        return np.arange(first, self._next)
