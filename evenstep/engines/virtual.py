"""The virtual engine: workers that only pretend to compute, on a clock that only pretends to run.

Workers start an iteration, arrive with their gradient when their cluster says so, and the scheme
says who starts next; SimPy keeps the clock. So far it is timing-only: nothing is computed but
how long it would take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import simpy

from evenstep.clusters.cluster import Cluster
from evenstep.clusters.conditions import Conditions
from evenstep.core.arrays import Floats, Ints
from evenstep.core.report import Reports
from evenstep.schemes.bsp import Bsp
from evenstep.schemes.scheme import Scheme


@dataclass(frozen=True, eq=False)
class Iteration:
    """One iteration of all workers, as it was run."""

    number: int
    """k."""
    start: float
    """When it began, in seconds of virtual time."""
    at: Conditions
    sizes: Ints
    """x of each worker."""
    times: Floats
    """t of each worker, in seconds; 0 where x is 0."""

    @property
    def time(self) -> float:
        """The iteration time: until the last worker has finished."""
        return float(self.times.max())


class Planner(Protocol):
    """Says how many samples each worker gets; `ahead` are the conditions that an oracle knows."""

    def sizes(self, reports: Reports, ahead: Conditions) -> Ints: ...


class VirtualEngine:
    """Runs a cluster's workers under a scheme, with the sizes of a planner."""

    def __init__(
        self, cluster: Cluster, planner: Planner, make_scheme: Callable[[int], Scheme] = Bsp
    ) -> None:
        self._cluster = cluster
        self._planner = planner
        self._scheme = make_scheme(cluster.num_workers)
        self._env = simpy.Environment()
        self._started: tuple[int, ...] = ()
        self._last: Iteration | None = None

    def run(self, iterations: int) -> Iterator[Iteration]:
        """Yield the iterations one by one as they are finished."""
        for number in range(iterations):
            self._last = self._start(number)
            self._run_until_started()
            yield self._last

    def _start(self, number: int) -> Iteration:
        """Let the workers start an iteration now; each arrives after its own time."""
        now = float(self._env.now)
        at = self._cluster.conditions(number, now)
        sizes = self._planner.sizes(self._reports(number, at), at)
        times = self._cluster.times(sizes, at)
        for worker, time in enumerate(times.tolist()):
            arrival = self._env.timeout(time, value=worker)
            arrival.callbacks.append(self._arrive)
        return Iteration(number, now, at, sizes, times)

    def _run_until_started(self) -> None:
        """Let the clock run until the scheme starts the next iteration."""
        self._started = ()
        while not self._started:
            self._env.step()

    def _arrive(self, arrival: simpy.Event) -> None:
        self._started = self._scheme.arrive(cast(int, arrival.value)).starts

    def _reports(self, number: int, at: Conditions) -> Reports:
        """Return what the workers say at the boundary: t of the last iteration, usage now."""
        last = self._last
        if last is None:
            silent = Reports.silent(number, self._cluster.num_workers)
            return Reports(
                number, silent.batch_sizes, silent.times, at.cpu, at.memory, silent.device_memory
            )
        worked = last.sizes > 0
        return Reports(
            iteration=number,
            batch_sizes=last.sizes,
            times=np.where(worked, last.times, np.nan),
            cpu=at.cpu,
            memory=at.memory,
            device_memory=np.where(worked, self._cluster.device_memory(last.sizes), np.nan),
        )
