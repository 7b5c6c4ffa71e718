"""One iteration of FlexRR, in which samples move between workers during processing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenstep.core import Floats, Ints
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions
from evenstep.simulator.clusters.curves import Curves
from evenstep.simulator.schemes import FlexRR


def sequential(cluster: Cluster) -> Cluster:
    """Return the cluster with workers that process one sample at a time.

    FlexRR needs such workers, and is compared with BSP on them: a batch takes x times as long as
    one sample.

    >>> from evenstep.simulator.clusters.scenarios import make_scenario
    >>> one_by_one = sequential(make_scenario("G", noisy=False))
    >>> one_by_one.curves.times_at(np.array([1, 1, 1, 1])).round(2)
    array([0.53, 0.71, 0.7 , 0.79])
    >>> one_by_one.curves.times_at(np.array([10, 10, 10, 10])).round(2)
    array([5.3 , 7.1 , 7.  , 7.92])
    """
    per_sample = _one_by_one(cluster)[:, None]
    size = np.zeros_like(per_sample)
    return replace(cluster, curves=Curves(sizes=size, times=size, slopes=per_sample))


def run_iteration(
    scheme: FlexRR, cluster: Cluster, sizes: Ints, at: Conditions
) -> tuple[Ints, Floats]:
    """Run an iteration that starts with these sizes; return the final sizes and the times.

    Every worker processes samples at a constant rate. The interval between checks is that of a
    perfectly balanced iteration with `scheme.checks` of them. A worker that gives or receives
    samples pays the cost of moving once in the iteration.
    """
    per_sample = _one_by_one(cluster) * at.slowdown * at.noise * (1 + scheme.monitoring)
    interval = float(sizes.sum() / (1 / per_sample).sum()) / scheme.checks
    batch_size = sizes.sum() / len(sizes)
    processed = interval / per_sample  # samples of each worker between two checks
    final = sizes.copy()
    charged = np.zeros(len(sizes), bool)
    work = sizes.astype(np.float64)  # unprocessed samples; negative after a worker has finished
    num_checks = 0
    while True:
        least = float(work.min())
        lag = float(work.max()) - max(least, 0.0)
        if least <= 0 and lag < 2:
            computation = num_checks * interval + work * per_sample
            return final, _with_communication(cluster, computation, at)
        if least <= 0 or lag > scheme.trigger * batch_size:
            left = np.maximum(work, 0.0)
            moves = scheme.check(left.astype(np.int64), batch_size)
            partners = np.concatenate([moves.helpers, moves.lagging])
            moved = np.concatenate([moves.counts, -moves.counts])
            cost = np.where(charged[partners], 0.0, scheme.moving * sizes[partners])
            work[partners] = left[partners] + moved + cost
            final[partners] += moved
            charged[partners] = True
        work -= processed
        num_checks += 1


def _with_communication(cluster: Cluster, computation: Floats, at: Conditions) -> Floats:
    communication = at.communication * at.noise
    if cluster.overlapped:
        return np.maximum(communication, computation)
    return communication + computation


def _one_by_one(cluster: Cluster) -> Floats:
    """Return the seconds that each worker takes for a batch of one sample."""
    return cluster.curves.times_at(np.ones(cluster.num_workers))
