"""Choice of workers: the iteration time of a job without one worker, and without several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evenstep.core import Bools, Floats, Ints
from evenstep.errors import InfeasibleLimits, InvalidSetting
from evenstep.insight.advice.case import Case, lowest_levels
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions
from evenstep.simulator.clusters.curves import Curves

_MANY = 256
"""Workers that are left out one by one, at most."""


@dataclass(frozen=True)
class Selection:
    """Some of the workers, with their optimum."""

    workers: Sequence[str]
    left_out: Sequence[str]
    batch_sizes: Sequence[int]
    iteration_time: float


def times_without(cluster: Cluster, at: Conditions, slowest_first: Ints) -> Floats:
    """Return the iteration time without each worker; NaN where impossible or not computed.

    With very many workers, it is computed for the slowest ones.
    """
    times = np.full(cluster.num_workers, np.nan)
    if cluster.num_workers < 2:
        return times
    removed = np.sort(slowest_first[:_MANY])
    caps = np.minimum(cluster.cap, cluster.total)
    removed = removed[caps.sum() - caps[removed] >= cluster.total]
    if not len(removed):
        return times
    case = Case.of(cluster, [at] * len(removed))
    kept = np.ones((len(removed), cluster.num_workers), dtype=np.int64)
    kept[np.arange(len(removed)), removed] = 0
    times[removed] = case.times(case.best_sizes(kept)).max(axis=1)
    return times


def best_without(cluster: Cluster, at: Conditions, num_out: int, noise: float = 1.0) -> Selection:
    """Return the fastest selection with `num_out` workers fewer.

    For a given deadline, the best workers to keep are those that process most samples until then.
    So the best selection belongs to the earliest deadline by which the best workers process the
    total. `noise` is how much longer an iteration takes than its slowest worker does on average.
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
        # A worker that cannot process its minimum by then cannot be kept.
        return np.where(sizes >= lo, np.minimum(sizes // g * g, hi), -cluster.total)

    def enough(levels: Floats) -> Bools:
        done = [np.sort(capacities(level))[-num_kept:].sum() for level in levels.tolist()]
        return np.array(done) >= cluster.total

    [level] = lowest_levels(enough, 1).tolist()
    order = np.argsort(-capacities(level), kind="stable")
    kept, out = np.sort(order[:num_kept]), np.sort(order[num_kept:])
    selected, conditions = select(cluster, kept), select_conditions(at, kept)
    sizes = selected.optimum(conditions)
    time = noise * float(selected.expected_times(sizes, conditions).max())
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
