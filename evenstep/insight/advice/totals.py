"""Total batches: the speed of the same workers with a larger or smaller total."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evenstep.errors import InfeasibleLimits
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions

_FACTORS = (0.5, 1.0, 2.0, 4.0)
_GOOD = 0.95
"""Share of the best speed with which a smaller total is good enough."""


@dataclass(frozen=True)
class Total:
    """The iteration time and speed of a total batch."""

    total: int
    iteration_time: float
    speed: float
    """Samples a second of all workers."""


def compare_totals(
    cluster: Cluster, at: Conditions, plain_time: float, noise: float = 1.0
) -> list[Total]:
    """Return the results of half, twice and four times the total, in rising order.

    Among them is the total that takes, balanced, as long as a plain iteration takes now. `noise`
    is how much longer an iteration takes than its slowest worker does on average.
    """
    g = cluster.granularity
    factors = {round(cluster.total * factor / g) * g for factor in _FACTORS}
    levels = np.full(cluster.num_workers, plain_time)
    roomy = replace(cluster, total=max(1, 64 * cluster.total))
    within = np.minimum(np.maximum(roomy.largest(levels, at), 0) // g * g, cluster.cap)
    candidates = sorted({*factors, int(within.sum())})
    found = (_total(cluster, at, total, noise) for total in candidates)
    return [total for total in found if total is not None]


def better_total(totals: Sequence[Total], current: int) -> Total | None:
    """Return the smallest total that is nearly as fast as the fastest, if it beats the current one.

    >>> better_total([Total(64, 1.0, 64.0), Total(128, 1.2, 106.0), Total(256, 2.3, 111.0)], 64)
    Total(total=128, iteration_time=1.2, speed=106.0)
    """
    best = max(total.speed for total in totals)
    good = next(total for total in totals if total.speed >= _GOOD * best)
    [now] = [total for total in totals if total.total == current]
    return good if good.total > current and _GOOD * good.speed >= now.speed else None


def _total(cluster: Cluster, at: Conditions, total: int, noise: float) -> Total | None:
    other = replace(cluster, total=total)
    try:
        sizes = other.optimum(at)
    except InfeasibleLimits:
        return None
    time = noise * float(other.expected_times(sizes, at).max())
    return Total(total, time, total / time) if total > 0 and time > 0 else None
