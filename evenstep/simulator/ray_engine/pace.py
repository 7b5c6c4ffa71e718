"""The pace of workers: their real speed, or that of an emulated cluster."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from evenstep.core import Floats, Ints
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions
from evenstep.simulator.engine.async_times import AsyncTimes
from evenstep.simulator.ray_engine.worker_actor import WorkerDone


class Pace(Protocol):
    """Returns the conditions of an iteration, and how long workers must take."""

    def conditions(self, iteration: int, now: float) -> Conditions: ...

    def together(self, sizes: Ints, at: Conditions) -> Floats:
        """Return the real seconds of each worker in an iteration of all workers."""
        ...

    def alone(self, worker: int, iteration: int, sizes: Ints, now: float) -> float:
        """Return the real seconds of one worker in its own iteration."""
        ...

    def measured(self, worker: int, done: WorkerDone) -> None:
        """Record the measurements of a worker."""
        ...


class RealPace:
    """Workers run at their real speed; their usage is the last one measured."""

    def __init__(self, num_workers: int) -> None:
        self._cpu = np.ones(num_workers)
        self._memory = np.ones(num_workers)

    def conditions(self, iteration: int, now: float) -> Conditions:
        ones = np.ones_like(self._cpu)
        return Conditions(ones, 0 * ones, ones, self._cpu.copy(), self._memory.copy())

    def together(self, sizes: Ints, at: Conditions) -> Floats:
        return np.zeros(len(sizes))

    def alone(self, worker: int, iteration: int, sizes: Ints, now: float) -> float:
        return 0.0

    def measured(self, worker: int, done: WorkerDone) -> None:
        self._cpu[worker], self._memory[worker] = done.cpu, done.memory


class EmulatedPace:
    """Workers take the scaled times of a cluster and report the cluster's usage."""

    def __init__(self, cluster: Cluster, scale: float) -> None:
        self._cluster = cluster
        self._scale = scale
        self._async_times: AsyncTimes | None = None

    def conditions(self, iteration: int, now: float) -> Conditions:
        return self._cluster.conditions(iteration, now)

    def together(self, sizes: Ints, at: Conditions) -> Floats:
        return self._scale * self._cluster.times(sizes, at)

    def alone(self, worker: int, iteration: int, sizes: Ints, now: float) -> float:
        if self._async_times is None:
            self._async_times = AsyncTimes(self._cluster, sizes)
        return self._scale * self._async_times.time(worker, iteration, now)

    def measured(self, worker: int, done: WorkerDone) -> None:
        pass


def make_pace(cluster: Cluster, scale: float | None) -> Pace:
    """Return the pace of a cluster on a scale, or the real pace without a scale."""
    return RealPace(cluster.num_workers) if scale is None else EmulatedPace(cluster, scale)
