"""The figures of a balancer for `ray.train.report`: means over iterations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from evenstep.runlog import IterationRow
from evenstep.runlog.loggers import scalars_of

_PLAN = "evenstep/plan"
"""A number that counts plans: a mean of it says nothing."""


class Figures:
    """Collects the figures of all iterations, as a logger of the balancer."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: Counter[str] = Counter()

    def iteration(self, row: IterationRow, workers: Sequence[str]) -> None:
        """Add the figures of an iteration."""
        for name, value in scalars_of(row, workers).items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] += 1

    def close(self) -> None:
        """Do nothing: figures that were not taken are dropped."""

    def take(self) -> dict[str, float]:
        """Return the mean of each figure over the iterations since the last call.

        >>> figures = Figures()
        >>> for times in ([0.1, 0.4], [0.3, 0.2]):
        ...     row = IterationRow(0, plan=0, start=0.0, batch_sizes=[8, 24], times=times)
        ...     figures.iteration(row, ["a", "b"])
        >>> taken = figures.take()
        >>> taken["evenstep/iteration_time"], taken["evenstep/batch_size/b"]
        (0.35, 24.0)
        >>> figures.take()
        {}
        """
        means = {name: sum / self._counts[name] for name, sum in self._sums.items()}
        means.pop(_PLAN, None)
        self._sums, self._counts = {}, Counter()
        return means
