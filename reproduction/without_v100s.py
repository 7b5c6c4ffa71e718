"""Cluster-A with and without its V100s: the less unequal the workers, the less there is to gain."""

from __future__ import annotations

import numpy as np

from evenstep.simulator.clusters.registry import make_cluster
from reproduction.end_to_end import ALG_2, BALANCED, BSP, NAMES
from reproduction.result import Row, Table, beside
from reproduction.steady_state import ALL, ORACLE, OVER_BSP, SteadyState

MODEL = "resnet32"
PAPER = {num_workers: OVER_BSP[num_workers, MODEL] for num_workers in (ALL, 12)}
"""Number of workers: LB-BSP's iteration time over BSP's, with ResNet-32."""


def without_v100s(made: SteadyState) -> Table:
    """Compare times with 16 workers and with 12, without the V100s."""
    return Table(
        "ResNet-32 with and without the V100s: settled iteration time over BSP's",
        "virtual",
        [_row(made, num_workers) for num_workers in PAPER],
        "Of runs like those of the table before it. One sample each: what the slowest worker takes "
        "with a single sample, over BSP's, without noise; no batch sizes take less.",
    )


def _row(made: SteadyState, num_workers: int) -> Row:
    def pace(label: str) -> float:
        return made.pace((num_workers, MODEL), label, BSP)

    return {
        "workers": num_workers,
        **beside(f"{NAMES[ALG_2]}: time / BSP", pace(ALG_2), PAPER[num_workers]),
        **beside(f"{NAMES[BALANCED]}: time / BSP", pace(BALANCED), PAPER[num_workers]),
        "oracle: time / BSP": pace(ORACLE),
        "one sample each: time / BSP": floor(num_workers),
    }


def floor(num_workers: int) -> float:
    """Return the least part of BSP's iteration time that batch sizes can take, but for noise.

    Each worker has a sample at least, and overhead and communication with it.
    """
    cluster = make_cluster(f"A:{num_workers},model={MODEL}", noisy=False)
    at = cluster.conditions(0, 0.0)
    sizes = (cluster.minimum, cluster.total // num_workers)
    one, even = (cluster.expected_times(np.full(num_workers, size), at).max() for size in sizes)
    return float(one / even)
