"""Cluster-B on machines of the Google trace that are drawn by a seed, from the full data."""

from __future__ import annotations

import csv
import gzip
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from evenstep.core import Floats
from evenstep.errors import DataFileError
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.cluster_b import HOUR, LEVEL, ClusterB
from evenstep.simulator.clusters.scheduled import Scheduled
from evenstep.simulator.clusters.tables import read_table
from evenstep.simulator.clusters.traces import Trace, Traces

CAPACITIES = {
    "m4.2xlarge": (0.5, 0.4995),
    "c5.2xlarge": (0.5, 0.2493),
    "r4.2xlarge": (0.5, 0.749),
    "m4.4xlarge": (1.0, 1.0),
    "m4.xlarge": (0.25, 0.2498),
}
"""Instance type: CPU and memory of the machines that it stands for; the largest machine has 1."""
_NUM_SLOTS = round(HOUR / LEVEL)
_LEAST = 0.01
"""The least share left of a machine: a worker with nothing would never finish."""


def draw_cluster(path: Path, seed: int) -> Cluster:
    """Make Cluster-B with every worker in place of another machine of its class, drawn by the seed.

    The file has a row per machine: its capacities, and cpu_00 to cpu_11 and mem_00 to mem_11, what
    its tasks used in twelve slots of five minutes.
    """
    cluster = ClusterB().make(seed=seed)
    environment = cluster.environment
    assert isinstance(environment, Scheduled)
    instances = [row["instance"] for row in read_table("cluster_b_workers")]
    traces = _draw(_machines(path), instances[: cluster.num_workers], path, seed)
    return replace(
        cluster,
        name="Cluster-B, machines drawn by the seed",
        environment=replace(environment, traces=Traces.of(traces)),
    )


def _draw(
    machines: dict[str, list[Trace]], instances: list[str], path: Path, seed: int
) -> list[Trace]:
    rng = np.random.default_rng((seed, 2020))
    left = {}
    for kind in CAPACITIES:
        if len(machines[kind]) < instances.count(kind):
            rule = f"must have {instances.count(kind)} machines like a {kind}"
            raise DataFileError(f"{path}: {rule}, got {len(machines[kind])}")
        left[kind] = iter(rng.permutation(len(machines[kind])).tolist())
    return [machines[kind][next(left[kind])] for kind in instances]


def _machines(path: Path) -> dict[str, list[Trace]]:
    """Return what was left of each machine, by the instance type that it stands for."""
    machines: dict[str, list[Trace]] = {kind: [] for kind in CAPACITIES}
    kinds = {capacity: kind for kind, capacity in CAPACITIES.items()}
    try:
        with gzip.open(path, "rt", newline="") as file:
            for row in csv.DictReader(file):
                capacity = float(row["cpu_capacity"]), float(row["mem_capacity"])
                if capacity in kinds:
                    machines[kinds[capacity]].append(_trace(row, capacity))
    except (KeyError, TypeError, ValueError, OSError, EOFError, zlib.error) as error:
        raise DataFileError(f"{path}: must be the usage of machines: {error!r}") from error
    return machines


def _trace(row: dict[str, str], capacity: tuple[float, float]) -> Trace:
    cpu, memory = (
        _left(np.array([float(row[f"{what}_{slot:02}"]) for slot in range(_NUM_SLOTS)]) / most)
        for what, most in zip(("cpu", "mem"), capacity, strict=True)
    )
    at = LEVEL * np.arange(_NUM_SLOTS, dtype=np.float64)
    return Trace(at, cpu, memory, "second", repeat=HOUR)


def _left(used: Floats) -> Floats:
    left: Floats = np.clip(1 - used, _LEAST, 1.0)
    return left
