"""The pace of workers: as fast as they can, or as a cluster says."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from evenstep.core import Floats, Ints
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions
from evenstep.simulator.engine.async_times import AsyncTimes
from evenstep.simulator.ray_engine.worker_actor import WorkerDone


class Pace(Protocol):
    """Says under which conditions an iteration begins, and how long workers must take."""

    def conditions(self, iteration: int, now: float) -> Conditions: ...

    def together(self, sizes: Ints, at: Conditions) -> Floats:
        """Return the real seconds that each worker takes for an iteration of all."""
        ...

    def alone(self, worker: int, iteration: int, sizes: Ints, now: float) -> float:
        """Return the real seconds that a worker takes for an iteration of its own."""
        ...

    def measured(self, worker: int, done: WorkerDone) -> None:
        """Take note of what a worker measured."""
        ...


class RealPace:
    """Workers take the time that they take; their usage is what they measured last."""

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
    """Workers take the times of a cluster, on a scale; usage is the cluster's as well."""

    def __init__(self, cluster: Cluster, scale: float) -> None:
        self._cluster = cluster
        self._scale = scale
        self._own_times: AsyncTimes | None = None

    def conditions(self, iteration: int, now: float) -> Conditions:
        return self._cluster.conditions(iteration, now)

    def together(self, sizes: Ints, at: Conditions) -> Floats:
        return self._scale * self._cluster.times(sizes, at)

    def alone(self, worker: int, iteration: int, sizes: Ints, now: float) -> float:
        if self._own_times is None:
            self._own_times = AsyncTimes(self._cluster, sizes)
        return self._scale * self._own_times.time(worker, iteration, now)

    def measured(self, worker: int, done: WorkerDone) -> None:
        pass


def make_pace(cluster: Cluster, scale: float | None) -> Pace:
    """Return the pace of a cluster on a scale; a real one where there is none."""
    return RealPace(cluster.num_workers) if scale is None else EmulatedPace(cluster, scale)
