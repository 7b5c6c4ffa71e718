"""The cluster of the demo: the GPUs of scenario G, scaled to what a small machine can emulate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenstep.clusters.cluster import Cluster
from evenstep.clusters.curves import Curves
from evenstep.clusters.noise import QUIET, Noise
from evenstep.clusters.scenarios import make_scenario
from evenstep.clusters.scheduled import Scheduled

_SAMPLES = 32
"""Samples per worker."""


def emulated_gpus(num_workers: int, scale: float) -> Cluster:
    """Return workers of the kinds of scenario G in turn, `scale` times as slow, without noise.

    >>> cluster = emulated_gpus(4, scale=0.125)
    >>> best = cluster.optimum(cluster.conditions(0, now=0.0))
    >>> best, cluster.curves.times_at(best).round(4)
    (array([89, 21, 12,  6]), array([0.1375, 0.1375, 0.1375, 0.1375]))
    """
    gpus = make_scenario("G", noisy=False)
    kinds = np.arange(num_workers) % gpus.num_workers
    curves = gpus.curves
    names = [gpus.workers[kind] for kind in kinds.tolist()]
    if num_workers > gpus.num_workers:
        names = [f"{name}-{i // gpus.num_workers}" for i, name in enumerate(names)]
    return replace(
        gpus,
        name="emulated GPUs",
        workers=names,
        curves=Curves(
            curves.sizes[kinds], scale * curves.times[kinds], scale * curves.slopes[kinds]
        ),
        cap=gpus.cap[kinds],
        environment=Scheduled(
            communication=np.zeros(num_workers), noise=Noise.of([QUIET] * num_workers, seed=0)
        ),
        total=_SAMPLES * num_workers,
        bandwidth=gpus.bandwidth[kinds],
        changes_at=None,
    )
