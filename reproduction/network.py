"""The network: what pulling parameters and pushing gradients costs each worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evenstep.core import Floats, Ints, require
from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions, Environment


@dataclass(frozen=True, eq=False)
class BandwidthChange:
    """From an iteration on, some workers have another bandwidth: they were moved, say."""

    iteration: int
    workers: Ints
    """Positions of the workers that change."""
    bandwidth: float
    """Bytes per second."""

    def __post_init__(self) -> None:
        if self.iteration < 0:
            raise InvalidSetting(f"iteration must be >= 0, got {self.iteration}")
        if not self.bandwidth > 0:
            raise InvalidSetting(f"bandwidth must be > 0, got {self.bandwidth}")


@dataclass(frozen=True, eq=False)
class Network:
    """The lines between workers and the parameter server, and what goes over them.

    >>> network = Network(bandwidth=np.array([1e6, 5e5]), model_bytes=1_000_000)
    >>> network.times(iteration=0)
    array([2., 4.])
    """

    bandwidth: Floats
    """Bytes per second of each worker; infinite where communication costs nothing."""
    model_bytes: float
    """Bytes of all parameters: pulled once per iteration, and pushed as a gradient once."""
    changes: Sequence[BandwidthChange] = ()
    """Of two changes to the same worker the later one holds."""

    def __post_init__(self) -> None:
        require(self.bandwidth > 0, "bandwidth must be > 0", self.bandwidth)
        if not 0 <= self.model_bytes < np.inf:
            raise InvalidSetting(f"model_bytes must be finite and >= 0, got {self.model_bytes}")
        in_order = sorted(self.changes, key=lambda change: change.iteration)
        object.__setattr__(self, "changes", in_order)

    def times(self, iteration: int) -> Floats:
        """Return t^m of each worker: a pull and a push, in seconds."""
        bandwidth = self.bandwidth.copy()
        for change in self.changes:
            if change.iteration <= iteration:
                bandwidth[change.workers] = change.bandwidth
        times: Floats = 2 * self.model_bytes / bandwidth
        return times


@dataclass(frozen=True, eq=False)
class _Networked:
    """An environment whose communication times are a network's."""

    environment: Environment
    network: Network

    @property
    def follows_clock(self) -> bool:
        return self.environment.follows_clock

    def conditions(self, iteration: int, now: float) -> Conditions:
        at = self.environment.conditions(iteration, now)
        return replace(at, communication=self.network.times(iteration))


def connect(cluster: Cluster, network: Network, overlapped: bool = False) -> Cluster:
    """Return the cluster with the communication times of a network in place of its own."""
    if network.bandwidth.shape != (cluster.num_workers,):
        raise InvalidSetting(
            f"a network must have a bandwidth for each of {cluster.num_workers} workers, "
            f"got shape {network.bandwidth.shape}"
        )
    environment = _Networked(cluster.environment, network)
    return replace(cluster, environment=environment, overlapped=overlapped)
