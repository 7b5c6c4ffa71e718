"""Backups: additional workers of a cluster, for redundant execution (section 5.3).

Cluster-B has two backups, as in the paper. In other clusters a backup is a copy of one of the
workers, with noise and background tasks drawn from another seed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from evenstep.core import Floats, Ints, require_whole
from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions, Environment
from evenstep.simulator.clusters.curves import Curves
from evenstep.simulator.clusters.registry import make_cluster

T = TypeVar("T", Conditions, Curves)

_OTHER_SEED = 1_000_003
"""Offset of the backups' seed, far above the seeds in use."""


def default_backups(num_workers: int) -> int:
    """Return one backup per 16 workers, as in the paper, and at least one.

    >>> default_backups(32), default_backups(4)
    (2, 1)
    """
    return max(1, num_workers // 16)


def make_with_backups(
    spec: str,
    backups: int | None = None,
    like: str | None = None,
    num_workers: int | None = None,
    iterations: int | None = None,
    seed: int = 0,
    noisy: bool = True,
    model: str | None = None,
) -> Cluster:
    """Make a cluster as `make_cluster` does, with backups after its workers.

    `like` names the worker to copy; by default the one at the upper quartile of speed. The samples
    per worker stay the same, so the total grows.

    >>> make_with_backups("B").workers[-2:]
    ['backup-0', 'backup-1']
    >>> make_with_backups("A:4").workers
    ['V100', 'M60', 'K80', 'K520', 'backup-0']
    """
    cluster = make_cluster(spec, num_workers, iterations, seed, noisy, model)
    backups = default_backups(cluster.num_workers) if backups is None else backups
    require_whole("backups", backups)
    name, _, settings = spec.partition(":")
    if name == "B":
        if like is not None:
            raise InvalidSetting(f"like must not be given for Cluster-B, got {like!r}")
        settings = f"{settings},backups={backups}" if settings else f"backups={backups}"
        return make_cluster(f"B:{settings}", num_workers, iterations, seed, noisy, model)
    twin = make_cluster(spec, num_workers, iterations, seed + _OTHER_SEED, noisy, model)
    return _joined(cluster, twin, np.full(backups, _likeness(cluster, like)))


def even_speeds(cluster: Cluster) -> Floats:
    """Return the speed of each undisturbed worker with an even batch, in samples per second."""
    batch_size = cluster.total / cluster.num_workers
    return batch_size / cluster.curves.times_at(np.full(cluster.num_workers, batch_size))


def _likeness(cluster: Cluster, like: str | None) -> int:
    workers = list(cluster.workers)
    if like is None:
        return int(np.argsort(even_speeds(cluster), kind="stable")[3 * (len(workers) - 1) // 4])
    if like not in workers:
        raise InvalidSetting(
            f"backups must be like one of the workers ({', '.join(workers)}), got {like!r}"
        )
    return workers.index(like)


def _joined(cluster: Cluster, twin: Cluster, rows: Ints) -> Cluster:
    """Return the cluster with these workers of its twin appended."""
    n, b = cluster.num_workers, len(rows)
    if cluster.total % n:
        raise InvalidSetting(
            f"with backups the total must be a multiple of the {n} workers, got {cluster.total}"
        )
    return replace(
        cluster,
        workers=[*cluster.workers, *(f"backup-{i}" for i in range(b))],
        curves=_append(cluster.curves, twin.curves, rows),
        cap=np.concatenate([cluster.cap, twin.cap[rows]]),
        environment=_Joined(cluster.environment, twin.environment, rows),
        total=cluster.total // n * (n + b),
        bandwidth=np.concatenate([cluster.bandwidth, twin.bandwidth[rows]]),
    )


@dataclass(frozen=True, eq=False)
class _Joined:
    """An environment followed by some workers of another one."""

    environment: Environment
    other: Environment
    rows: Ints

    @property
    def follows_clock(self) -> bool:
        return self.environment.follows_clock or self.other.follows_clock

    def conditions(self, iteration: int, now: float) -> Conditions:
        at, other = (each.conditions(iteration, now) for each in (self.environment, self.other))
        return _append(at, other, self.rows)


def _append(one: T, other: T, rows: Ints) -> T:
    """Append rows of `other` to every array of `one`."""
    pairs = ((getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    return type(one)(*(np.concatenate([array, more[rows]]) for array, more in pairs))
