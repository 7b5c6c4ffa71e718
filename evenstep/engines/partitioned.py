"""Partitioned samples: workers that each hold a part of the data, skewed by class.

>>> from evenstep.clusters.scenarios import make_scenario
>>> import numpy as np
>>> cluster = make_scenario("G", noisy=False)
>>> labels = np.arange(20) % 10
>>> fast, *_, slow = make_partitions("by_speed", labels, cluster, seed=0)
>>> sorted(set(labels[fast].tolist())), sorted(set(labels[slow].tolist()))
([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
"""

from __future__ import annotations

from collections.abc import Callable

from evenstep.clusters.backups import even_speeds
from evenstep.clusters.cluster import Cluster
from evenstep.core.arrays import Ints
from evenstep.core.settings import construct, parse_spec
from evenstep.errors import InvalidSetting
from evenstep.workloads.partitions import partition_by_speed, partition_dirichlet


def make_partitions(spec: str, labels: Ints, cluster: Cluster, seed: int) -> list[Ints]:
    """Say which samples each worker of a cluster holds; `spec` is in short form."""
    name, settings = parse_spec(spec)
    if name not in PARTITIONS:
        raise InvalidSetting(f"partition must be one of {', '.join(PARTITIONS)}, got {name!r}")
    return construct(PARTITIONS[name], name, settings, labels, cluster, seed)


def _by_speed(labels: Ints, cluster: Cluster, seed: int) -> list[Ints]:
    return partition_by_speed(labels, even_speeds(cluster), seed)


def _dirichlet(labels: Ints, cluster: Cluster, seed: int, alpha: float = 0.5) -> list[Ints]:
    return partition_dirichlet(labels, cluster.num_workers, alpha, seed)


PARTITIONS: dict[str, Callable[..., list[Ints]]] = {
    "by_speed": _by_speed,
    "dirichlet": _dirichlet,
}
