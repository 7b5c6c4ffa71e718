"""Points: a quantity over a whole run, in memory that does not grow with the run."""

from __future__ import annotations

import numpy as np

from evenstep.core import Floats


class Points:
    """Mean, smallest and largest value of each of several columns, per `every` rows.

    When all points are in use, each two are merged, and a point stands for twice the rows. NaN
    values do not count.

    >>> points = Points(columns=1, capacity=2)
    >>> for value in (1.0, 3.0, 8.0):
    ...     points.add(np.array([value]))
    >>> points.every, points.means[:, 0], points.largest[:, 0]
    (2, array([2., 8.]), array([3., 8.]))
    """

    def __init__(self, columns: int, capacity: int) -> None:
        assert capacity % 2 == 0, capacity
        self.every = 1
        self._rows = 0
        shape = (capacity, columns)
        self._sums, self._counts = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        self._least, self._most = np.full(shape, np.inf), np.full(shape, -np.inf)

    def __len__(self) -> int:
        return -(-self._rows // self.every)

    def add(self, values: Floats) -> None:
        """Add a row with a value for each column."""
        if self._rows == self.every * len(self._sums):
            self._halve()
        point = self._rows // self.every
        known = ~np.isnan(values)
        self._sums[point, known] += values[known]
        self._counts[point] += known
        self._least[point] = np.fmin(self._least[point], values)
        self._most[point] = np.fmax(self._most[point], values)
        self._rows += 1

    def skip(self, rows: int) -> None:
        """Add rows of unknown values."""
        while self._rows + rows > self.every * len(self._sums):
            self._halve()
        self._rows += rows

    def widen(self, columns: int) -> None:
        """Add columns, with unknown values so far."""
        more = [(0, 0), (0, columns - self._sums.shape[1])]
        self._sums, self._counts = np.pad(self._sums, more), np.pad(self._counts, more)
        self._least = np.pad(self._least, more, constant_values=np.inf)
        self._most = np.pad(self._most, more, constant_values=-np.inf)

    @property
    def means(self) -> Floats:
        """The mean of each point and column, NaN where no value is known."""
        sums, counts = self._sums[: len(self)], self._counts[: len(self)]
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    @property
    def smallest(self) -> Floats:
        """The smallest value in each point, NaN where no value is known."""
        return self._known(self._least)

    @property
    def largest(self) -> Floats:
        """The largest value in each point, NaN where no value is known."""
        return self._known(self._most)

    def _known(self, values: Floats) -> Floats:
        return np.where(self._counts[: len(self)] > 0, values[: len(self)], np.nan)

    def _halve(self) -> None:
        self.every *= 2
        half = len(self._sums) // 2
        for array, fold, nothing in (
            (self._sums, np.add, 0), (self._counts, np.add, 0),
            (self._least, np.minimum, np.inf), (self._most, np.maximum, -np.inf),
        ):  # fmt: skip
            array[:half] = fold(array[::2], array[1::2])
            array[half:] = nothing
