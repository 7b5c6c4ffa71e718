"""What an engine tells: the iterations and arrivals of its workers, and what failed meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evenstep.core import Bools, Floats, Ints, Reports
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions


@dataclass(frozen=True, eq=False)
class Iteration:
    """One iteration of all workers, as it was run (BSP kinds)."""

    number: int
    """k."""
    start: float
    """When it began, in seconds of the run's clock."""
    at: Conditions
    sizes: Ints
    """x of each worker: samples that it processes."""
    times: Floats
    """t of each worker, in seconds, had it been let to finish; 0 where x is 0."""
    used: Bools
    """Whether the gradient of each worker has come in and counts."""

    @property
    def time(self) -> float:
        """The iteration time: until the last worker that counts has finished."""
        return float(self.times[self.used].max(initial=0.0))


class Arrival(NamedTuple):
    """A gradient that has come in."""

    worker: int
    iteration: int
    """k, as the worker counts."""
    start: float
    """When the worker started, in seconds of the run's clock."""
    end: float
    batch_size: int
    used: bool
    staleness: int
    """Updates that others made since the worker had pulled its parameters."""
    updated: bool
    """Whether the server has applied an update."""


@dataclass(frozen=True)
class Fault:
    """A worker or a shard has failed; the run went on."""

    time: float
    """When it was noticed, in seconds of the run's clock."""
    who: str
    """`worker 2`, `shard 0`."""
    iteration: int
    """k of the worker; for a shard, the updates that it had made."""
    what: str
    """What happened, and what was done about it."""


def reports(cluster: Cluster, number: int, last: Iteration | None, at: Conditions) -> Reports:
    """Return what the workers say at the boundary: t of the last iteration, usage now."""
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
