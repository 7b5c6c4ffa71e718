"""The records of an engine: iterations, arrivals of gradients, and faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evenstep.core import Bools, Floats, Ints, Reports
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions


@dataclass(frozen=True, eq=False)
class Iteration:
    """One iteration of all workers (synchronous schemes)."""

    number: int
    """k."""
    start: float
    """Start time, in seconds of the run's clock."""
    at: Conditions
    sizes: Ints
    """x of each worker: number of samples."""
    times: Floats
    """t of each worker in seconds, also if it was abandoned; 0 where x is 0."""
    used: Bools
    """Whether the gradient of each worker has arrived and counts."""

    @property
    def time(self) -> float:
        """The iteration time: that of the last worker that counts."""
        return float(self.times[self.used].max(initial=0.0))


class Arrival(NamedTuple):
    """A gradient that has arrived."""

    worker: int
    iteration: int
    """k of the worker."""
    start: float
    """Start time of the worker, in seconds of the run's clock."""
    end: float
    batch_size: int
    used: bool
    staleness: int
    """Updates between the worker's pull and its push."""
    updated: bool
    """Whether the server applied an update."""


@dataclass(frozen=True)
class Fault:
    """A failure of a worker or a shard that the run survived."""

    time: float
    """Time of detection, in seconds of the run's clock."""
    who: str
    """`worker 2`, `shard 0`."""
    iteration: int
    """k of the worker; for a shard, its number of updates."""
    what: str
    """The cause and the reaction."""


def reports(cluster: Cluster, number: int, last: Iteration | None, at: Conditions) -> Reports:
    """Return the reports at a boundary: t of the last iteration, and the current usage."""
    if last is None:
        silent = Reports.silent(number, cluster.num_workers)
        return Reports(
            number, silent.batch_sizes, silent.times, at.cpu, at.memory, silent.device_memory
        )
    worked = (last.sizes > 0) & last.used
    return Reports(
        iteration=number,
        batch_sizes=np.where(worked, last.sizes, 0),
        times=np.where(worked, last.times, np.nan),
        cpu=at.cpu,
        memory=at.memory,
        device_memory=np.where(worked, cluster.device_memory(last.sizes), np.nan),
    )
