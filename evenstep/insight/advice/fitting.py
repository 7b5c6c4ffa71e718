"""Lines ``t = overhead + slope x``, fitted to the batch processing times of each worker.

The slope is fitted by least squares to the changes of t when the size *changed*, not to all
points: a balancer makes the batch of a worker smaller because it became slower, so that over a
whole run small batches look slow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from evenstep.core import Bools, Floats, Ints
from evenstep.insight.advice.observations import Observations
from evenstep.simulator.clusters.curves import Curves, affine

LEAST_SLOPE = 0.05
"""Smallest slope, over the time per sample: a batch is never overhead only."""

LARGEST_OVERHEAD = 0.5
"""Largest overhead that is drawn, as a share of the time, where it cannot be identified."""

_USABLE_ERROR = 0.25
"""Largest standard error of a usable slope, over the time per sample."""

_NEAR = 3
"""Iterations before and after a change of size whose medians are compared."""

_FAR, _ROUNDS = 4.0, 3
"""Spreads beyond which a change is an outlier, and the rounds in which outliers are removed."""


@dataclass(frozen=True, eq=False)
class Lines:
    """One line per worker, through its latest point (size, time)."""

    sizes: Floats
    """Median size towards the end."""
    times: Floats
    """Median time at that size, in seconds."""
    slopes: Floats
    """Seconds per sample."""
    errors: Floats
    """Standard error of the slopes; infinite where the sizes do not determine them."""

    @property
    def identified(self) -> Bools:
        """Whether sizes varied enough to separate overhead from slope; else t ~ x is assumed."""
        identified: Bools = np.isfinite(self.errors)
        return identified

    @property
    def overheads(self) -> Floats:
        return np.maximum(self.times - self.slopes * self.sizes, 0.0)

    def times_at(self, sizes: Floats) -> Floats:
        return self.overheads + self.slopes * sizes

    def curves(self) -> Curves:
        pairs = zip(self.overheads.tolist(), self.slopes.tolist(), strict=True)
        return Curves.of([affine(overhead, slope) for overhead, slope in pairs])

    def drawn(self, rng: np.random.Generator) -> Lines:
        """Draw lines within the uncertainty of the fit."""
        each = self.times / self.sizes
        errors = np.where(self.identified, self.errors, 0.0)
        likely = self.slopes + errors * rng.standard_normal(len(each))
        allowed = each * (1 - LARGEST_OVERHEAD * rng.uniform(size=len(each)))
        slopes = np.where(self.identified, np.clip(likely, LEAST_SLOPE * each, each), allowed)
        return Lines(self.sizes, self.times, slopes, self.errors)


def fit(seen: Observations) -> Lines:
    """Fit the lines; a worker whose size did not vary gets a line through the origin."""
    count = seen.num_workers
    sizes, times, slopes = np.empty((3, count))
    errors = np.full(count, np.inf)
    known = seen.known
    for i in range(count):
        rows = known[:, i]
        x, t = seen.sizes[rows, i], seen.times[rows, i]
        late = slice(-max(20, len(x) // 4), None)
        sizes[i] = np.median(x[late])
        each = float(np.median(t[late] / x[late]))
        slope, error = (np.nan, np.inf) if seen.sizes_follow else _slope(x, t)
        if error < _USABLE_ERROR * each:
            slopes[i], errors[i] = min(max(slope, LEAST_SLOPE * each), each), error
        else:
            slopes[i] = each
        times[i] = np.median(t[late] - slopes[i] * (x[late] - sizes[i]))
        slopes[i] = min(slopes[i], times[i] / sizes[i])
    return Lines(sizes, times, slopes, errors)


def _slope(x: Floats, t: Floats) -> tuple[float, float]:
    """Return seconds per sample and its standard error, infinite if the size never changed."""
    ends = np.flatnonzero(np.diff(x) != 0)
    still = np.diff(t)[np.diff(x) == 0]
    if len(ends) + len(still) < 2 or not len(ends):
        return np.nan, np.inf
    runs = np.concatenate(([0], ends + 1, [len(x)]))
    before, after = runs[:-2], runs[1:-1]
    steps = x[after] - x[after - 1]
    rises = _near(t, after, runs[2:]) - _near(t, before, after, from_end=True)
    noise = _spread(still) / math.sqrt(2)
    slope = float(np.median(rises / steps))
    leverage, spread = _leverage(steps), max(_spread(rises - slope * steps), noise)
    for _ in range(_ROUNDS):
        # A spike on either side of a change does not belong to the slope.
        near = np.abs(rises - slope * steps) <= _FAR * spread
        steps, rises = steps[near], rises[near]
        leverage = _leverage(steps)
        slope = float((steps * rises).sum()) / leverage
        spread = max(_spread(rises - slope * steps), noise)
    return slope, spread / math.sqrt(leverage)


def _leverage(steps: Floats) -> float:
    return float(np.square(steps).sum())


def _spread(values: Floats) -> float:
    """Return a standard deviation that is robust against spikes."""
    return 1.4826 * float(np.median(np.abs(values))) if len(values) else 0.0


def _near(t: Floats, start: Ints, end: Ints, from_end: bool = False) -> Floats:
    """Return the median of the first, or last, few times of each run of one size."""
    offsets = np.arange(_NEAR)
    positions = end[:, None] - 1 - offsets if from_end else start[:, None] + offsets
    inside = (positions >= start[:, None]) & (positions < end[:, None])
    values = np.where(inside, t[np.clip(positions, 0, len(t) - 1)], np.nan)
    medians: Floats = np.nanmedian(values, axis=1)
    return medians
