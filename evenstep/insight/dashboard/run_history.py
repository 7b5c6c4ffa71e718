"""The history of a run: every quantity since its start, in a few hundred points."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evenstep.core import Floats
from evenstep.insight.dashboard.points import Points

MOST_POINTS = 512
"""Points of a line: a screen has not many more pixels for it."""
FEWEST_POINTS = 32
MOST_ENTRIES = 2**17
"""Points times workers: with very many workers, there are fewer points."""

WHOLE = ("iteration_times", "waiting_shares", "plain", "optimum")
"""The quantities of a whole iteration."""
OF_WORKERS = ("batch_sizes", "speeds", "predicted_speeds", "cpu", "memory", "device_memory")
"""The quantities of each worker."""


def num_points(num_workers: int) -> int:
    """Return how many points a history has at most; an even number.

    >>> num_points(1), num_points(1000), num_points(10_000)
    (512, 130, 32)
    """
    points = MOST_ENTRIES // max(1, num_workers) // 2 * 2
    return max(FEWEST_POINTS, min(MOST_POINTS, points))


class RunHistory:
    """Takes one iteration at a time; memory does not grow with the length of the run."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._capacity = num_points(num_workers)
        self._rows = 0
        self.iterations = Points(1, self._capacity)
        """The positions of the points, in iterations."""
        self.whole = {name: Points(1, self._capacity) for name in WHOLE}
        """The quantities of whole iterations."""
        self.of_workers: dict[str, Points] = {}
        """The known quantities of the workers."""

    @property
    def every(self) -> int:
        """Iterations in a point."""
        return self.iterations.every

    def widen(self, num_workers: int) -> None:
        """Add columns for workers that joined, after the others."""
        self._num_workers = num_workers
        for points in self.of_workers.values():
            points.widen(num_workers)

    def add(
        self, iteration: int, whole: Mapping[str, float], workers: Mapping[str, Floats | None]
    ) -> None:
        """Add an iteration: the quantities of the whole, and those of each worker."""
        self.iterations.add(np.array([float(iteration)]))
        for name, points in self.whole.items():
            points.add(np.array([whole[name]]))
        for name, values in workers.items():
            if values is not None and name not in self.of_workers:
                self.of_workers[name] = Points(self._num_workers, self._capacity)
                self.of_workers[name].skip(self._rows)
            if name in self.of_workers:
                nothing = np.full(self._num_workers, np.nan)
                self.of_workers[name].add(nothing if values is None else values)
        self._rows += 1
