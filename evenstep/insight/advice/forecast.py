"""The forecast: current iteration times of plain BSP and of the optimum, from fitted lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from evenstep.core import LARGEST_TOTAL, Floats, Ints, Limits, even_sizes, makespan, split_affine
from evenstep.errors import InfeasibleLimits
from evenstep.insight.thinning import median
from evenstep.policies.finish_filter import FinishFilter

_LAST = 9
"""Iterations whose median speed is used if times are proportional to sizes."""


class Forecast:
    """Observes iterations; its estimates are those of the newest lines.

    If sizes follow predicted speeds, the effect of a size on t cannot be identified; times are then
    assumed to be `proportional` to sizes, as the policy assumes.

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
        """Observe the sizes and times of an iteration; NaN times are ignored.

        `caps` are the limits of the workers, if they are known: the best sizes respect them.
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
        """Seconds of an iteration with even sizes; NaN before all workers were observed."""
        unlimited = Limits.of(self._limits.num_workers)
        return self._time(lambda offsets, slopes: even_sizes(self._total, unlimited))

    @property
    def optimum(self) -> float:
        """Seconds of an iteration with the best sizes that the limits allow.

        NaN before all workers were observed, and if the limits leave no room for the total.
        """
        try:
            return self._time(
                lambda offsets, slopes: split_affine(self._total, offsets, slopes, self._limits)
            )
        except InfeasibleLimits:
            return np.nan

    def _time(self, sizes: Callable[[Floats, Floats], Ints]) -> float:
        """Return the time of an iteration with these sizes."""
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
