"""A window: the iterations, or the seconds of the virtual clock, over which runs are compared.

A trace runs by the clock: as many iterations take a fast scheme less far into it than a slow one,
where other loads may be. On a trace it is the same seconds that are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Window:
    """From `start` to before `end`; predictors learn before it.

    >>> Window(10, 20).per_update([4.0, 9.0, 14.0, 19.0, 24.0])
    5.0
    >>> Window(1, 3, "iteration").per_update([4.0, 9.0, 15.0])
    5.5
    """

    start: float
    end: float
    unit: str = "second"
    """`second` or `iteration`, as that of a trace."""

    @classmethod
    def after(cls, second: float, length: float) -> Window:
        """Return a window of some seconds from the next whole minute on.

        >>> Window.after(70.5, 300)
        Window(start=120.0, end=420.0, unit='second')
        """
        start = 60.0 * math.ceil(second / 60)
        return cls(start, start + length)

    def updates(self, done: Sequence[float]) -> float:
        """Return how many updates it has; `done` says when each one was complete.

        Of an update at an edge, the part counts that is within.
        """
        if self.unit == "iteration":
            return self.end - self.start
        assert done[-1] >= self.end, "the run ended within the window"
        first, last = np.interp([self.start, self.end], [0.0, *done], range(len(done) + 1))
        return float(last - first)

    def per_update(self, done: Sequence[float]) -> float:
        """Return the seconds per update."""
        first, last = self.start, self.end
        if self.unit == "iteration":
            first, last = ([0.0, *done][int(at)] for at in (first, last))
        return float(last - first) / self.updates(done)

    def has(self, iteration: int, begun: float) -> bool:
        """Return whether an iteration begins in it."""
        return self.start <= self._place(iteration, begun) < self.end

    def is_over(self, iteration: int, now: float) -> bool:
        """Return whether an iteration that begins now is behind it."""
        return self._place(iteration, now) >= self.end

    def _place(self, iteration: int, now: float) -> float:
        return now if self.unit == "second" else iteration
