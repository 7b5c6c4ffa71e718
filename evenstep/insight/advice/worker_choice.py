"""Which workers to keep: what the job would take without each, and without several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evenstep.core import Floats, Ints
from evenstep.errors import InfeasibleLimits, InvalidSetting
from evenstep.insight.advice.case import Case, lowest_levels
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions
from evenstep.simulator.clusters.curves import Curves

_MANY = 256
"""Workers of whom it is asked, one by one, what the job would take without them."""


@dataclass(frozen=True)
class Selection:
    """Some of the workers, with the best that they can do."""

    workers: Sequence[str]
    left_out: Sequence[str]
    batch_sizes: Sequence[int]
    iteration_time: float


def times_without(cluster: Cluster, at: Conditions, slowest_first: Ints) -> Floats:
    """Return the iteration time without each worker; NaN where that cannot be, or is not asked.

    Of very many workers, it is asked of the slowest ones.
    """
    times = np.full(cluster.num_workers, np.nan)
    if cluster.num_workers < 2:
        return times
    asked = np.sort(slowest_first[:_MANY])
    caps = np.minimum(cluster.cap, cluster.total)
    asked = asked[caps.sum() - caps[asked] >= cluster.total]
    if not len(asked):
        return times
    case = Case.of(cluster, [at] * len(asked))
    kept = np.ones((len(asked), cluster.num_workers), dtype=np.int64)
    kept[np.arange(len(asked)), asked] = 0
    times[asked] = case.times(case.best_sizes(kept)).max(axis=1)
    return times


def best_without(cluster: Cluster, at: Conditions, num_out: int) -> Selection:
    """Return the crew that is fastest with `num_out` workers fewer.

    By any deadline, the workers who get most done until then are the best to keep; so the best
    crew is that of the earliest deadline by which the best that remain get the total done.
    """
    num_kept = cluster.num_workers - num_out
    if not 1 <= num_kept <= cluster.num_workers:
        raise InvalidSetting(
            f"workers to leave out must be from 0 to {cluster.num_workers - 1}, got {num_out}"
        )
    lo, hi = cluster.limits.tighten(cap=cluster.cap).bounds(cluster.total)
    best_caps = np.sort(hi)[-num_kept:]
    if int(best_caps.sum()) < cluster.total:
        raise InfeasibleLimits(
            f"the batch size caps of {num_kept} workers must add up to the total {cluster.total} "
            f"at least, got {int(best_caps.sum())}"
        )

    def capacities(level: float) -> Ints:
        sizes = cluster.largest(np.full(cluster.num_workers, level), at)
        g = cluster.granularity
        # Who cannot do the least by then cannot be kept.
        return np.where(sizes >= lo, np.minimum(sizes // g * g, hi), -cluster.total)

    def enough(levels: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        done = [np.sort(capacities(level))[-num_kept:].sum() for level in levels.tolist()]
        return np.array(done) >= cluster.total

    [level] = lowest_levels(enough, 1).tolist()
    order = np.argsort(-capacities(level), kind="stable")
    kept, out = np.sort(order[:num_kept]), np.sort(order[num_kept:])
    crew, conditions = select(cluster, kept), select_conditions(at, kept)
    sizes = crew.optimum(conditions)
    time = float(crew.expected_times(sizes, conditions).max())
    names = np.array(cluster.workers, dtype=object)
    return Selection(tuple(names[kept]), tuple(names[out]), sizes.tolist(), time)


def select(cluster: Cluster, keep: Ints) -> Cluster:
    """Return the cluster of the workers at the positions `keep`."""
    curves = cluster.curves
    return replace(
        cluster, workers=[cluster.workers[i] for i in keep],
        curves=Curves(curves.sizes[keep], curves.times[keep], curves.slopes[keep]),
        cap=cluster.cap[keep], bandwidth=cluster.bandwidth[keep],
    )  # fmt: skip


def select_conditions(at: Conditions, keep: Ints) -> Conditions:
    columns = (at.slowdown, at.communication, at.noise, at.cpu, at.memory)
    return Conditions(*(column[keep] for column in columns))
