"""The forecast: what plain BSP and the optimum would take now, by lines that follow the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from evenstep.core import Floats, Ints, Limits, even_sizes
from evenstep.core.split import LARGEST_TOTAL, makespan, split_affine
from evenstep.errors import InfeasibleLimits
from evenstep.insight.thinning import median
from evenstep.policies.finish_filter import FinishFilter

_LAST = 9
"""Iterations whose median speed counts where times are proportional to sizes."""


class Forecast:
    """Takes iteration after iteration; its estimates are those of the newest lines.

    Where sizes follow predicted speeds, what a change of size does to t cannot be told, and
    times are taken to be `proportional` to sizes, as the policy takes them.

    >>> forecast = Forecast(num_workers=2, total=32)
    >>> forecast.observe(np.array([16, 16]), np.array([0.1, 0.3]))
    >>> round(forecast.plain, 3), round(forecast.optimum, 3)
    (0.3, 0.15)
    """

    def __init__(self, num_workers: int, total: int, proportional: bool = False) -> None:
        self._limits = Limits.of(num_workers)
        self._total = total
        self._proportional = proportional
        self._filter = FinishFilter.fresh(num_workers)
        self._each: deque[Floats] = deque(maxlen=_LAST)

    def observe(self, sizes: Ints, times: Floats, caps: Ints | None = None) -> None:
        """Take what the workers did in an iteration; NaN times are passed over.

        `caps` are the limits of the workers, where they are known: the best sizes keep to them.
        """
        if caps is not None:
            self._limits = Limits.of(len(caps), cap=np.maximum(caps, 1))
        worked = (sizes > 0) & (times > 0)
        times = np.where(worked, times, np.nan)
        if self._proportional:
            self._each.append(times / np.maximum(sizes, 1))
        else:
            self._filter = self._filter.observe(sizes, times)

    @property
    def plain(self) -> float:
        """Seconds that an iteration would take with even sizes; NaN before all were seen."""
        anything = Limits.of(self._limits.num_workers)
        return self._time(lambda offsets, slopes: even_sizes(self._total, anything))

    @property
    def optimum(self) -> float:
        """Seconds that an iteration would take with the best sizes that the limits allow.

        NaN before all were seen, and where the limits leave no room for the total.
        """
        try:
            return self._time(
                lambda offsets, slopes: split_affine(self._total, offsets, slopes, self._limits)
            )
        except InfeasibleLimits:
            return np.nan

    def _time(self, sizes: Callable[[Floats, Floats], Ints]) -> float:
        """Return how long an iteration with these sizes would take."""
        offsets, slopes = self._lines()
        if np.isnan(slopes).any() or not len(slopes) <= self._total <= LARGEST_TOTAL:
            return np.nan
        return makespan(sizes(offsets, slopes), offsets, slopes)

    def _lines(self) -> tuple[Floats, Floats]:
        unknown = np.full(self._limits.num_workers, np.nan)
        if not self._proportional:
            known = self._filter.seen.all()
            return self._filter.offsets(), self._filter.slope if known else unknown
        slopes = median(np.stack(self._each), axis=0) if self._each else unknown
        return np.zeros_like(slopes), slopes
