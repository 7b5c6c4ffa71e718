"""From observations to a case: fitted lines, and the ratio of each recorded time to its line."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evenstep.core import Floats, Ints
from evenstep.insight.advice.case import Case
from evenstep.insight.advice.fitting import Lines, fit
from evenstep.insight.advice.observations import Observations
from evenstep.insight.thinning import running_median
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions

LASTS = 9
"""Window in iterations: a slowdown for more than half of it is lasting, and can be followed."""


class Recorded:
    """An environment with the recorded conditions."""

    follows_clock = False

    def __init__(self, slowdown: Floats, noise: Floats) -> None:
        self._slowdown, self._noise = slowdown, noise

    def conditions(self, iteration: int, now: float) -> Conditions:
        row = iteration % len(self._noise)
        nothing = np.ones(self._noise.shape[1])
        return Conditions(
            self._slowdown[row], np.zeros(len(nothing)), self._noise[row], nothing, nothing
        )


def case_of(seen: Observations, lasts: int = LASTS) -> Case:
    """Return the case of all iterations, with the lines fitted to them.

    With a `lasts` of 1 there is no noise: all changes count as lasting.
    """
    make, lines = case_maker(seen, lasts=lasts)
    return make(lines)


def case_maker(
    seen: Observations, rows: Ints | None = None, lasts: int = LASTS
) -> tuple[Callable[[Lines], Case], Lines]:
    """Return a function from lines to the case that they give, and the fitted lines."""
    lines = fit(seen)
    known = seen.known
    fitted = lines.times_at(seen.sizes)
    ratios = np.where(known, seen.times / np.where(known, fitted, 1.0), np.nan)
    lasting = np.stack([running_median(column, lasts) for column in ratios.T], axis=1)
    lasting = np.where(np.isnan(lasting), 1.0, lasting)
    noise = np.where(known, ratios / lasting, 1.0)
    chosen = np.arange(len(ratios)) if rows is None else rows
    lasting, noise, sizes = lasting[chosen], noise[chosen], seen.sizes[chosen]
    worked = known[chosen]
    whole = (known | (seen.sizes == 0)).all(axis=1)
    took = np.where(whole, np.max(np.where(known, seen.times, 0.0), axis=1), np.nan)[chosen]

    def make(other: Lines) -> Case:
        # The times stay the recorded ones: conditions explain the rest of another line.
        shift = np.where(worked, fitted[chosen] / other.times_at(sizes), 1.0)
        slowdown = lasting * shift
        cluster = Cluster(
            name="recorded", workers=seen.workers, curves=other.curves(), cap=seen.caps,
            environment=Recorded(slowdown, noise), total=seen.total, iterations=len(chosen),
        )  # fmt: skip
        return Case(cluster, slowdown, np.zeros_like(slowdown), noise, took)

    return make, lines
