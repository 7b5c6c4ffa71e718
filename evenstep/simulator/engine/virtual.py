"""The virtual engine: runs workers in simulated time.

Workers start an iteration and arrive with their gradient after the time given by the cluster; the
scheme decides whether it counts and which workers start next; SimPy keeps the clock. With a learner
the gradients are real, computed at the parameters pulled at the start of the iteration; without
one, the run is timing-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, cast

import numpy as np
import simpy

from evenstep.core import Ints, Reports
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions
from evenstep.simulator.engine.async_times import AsyncTimes
from evenstep.simulator.engine.flexrr_iteration import run_iteration
from evenstep.simulator.engine.iteration import Arrival, Fault, Iteration, reports
from evenstep.simulator.schemes import Bsp, FlexRR, Scheme


class SizeSource(Protocol):
    """Returns the batch size of each worker; `ahead` are the conditions that an oracle knows."""

    def sizes(self, reports: Reports, ahead: Conditions) -> Ints: ...


class Learner(Protocol):
    """Computes gradients and updates at the request of the engine."""

    def pull(self, worker: int) -> None:
        """Give the current parameters to a worker that starts."""
        ...

    def push(self, worker: int, iteration: int, sizes: Ints, weight: float) -> None:
        """Compute the gradient of a worker at the parameters it pulled, and push it."""
        ...

    def update(self) -> None:
        """Apply the pushed gradients."""
        ...


class VirtualEngine:
    """Runs a cluster's workers under a scheme, with the sizes of a planner.

    Synchronous schemes ask the planner at every iteration boundary. The others have no boundaries:
    they ask it once, at the beginning, and each worker keeps its batch size.
    """

    clock = "virtual"
    faults: Sequence[Fault] = ()

    def __init__(
        self,
        cluster: Cluster,
        planner: SizeSource,
        make_scheme: Callable[[int], Scheme] = Bsp,
        learner: Learner | None = None,
        at_boundary: Callable[[float], None] | None = None,
    ) -> None:
        """`at_boundary` is called with the time at every boundary, before any worker starts."""
        n = cluster.num_workers
        self.scheme = make_scheme(n)
        self._cluster = cluster
        self._planner = planner
        self._learner = learner
        self._at_boundary = at_boundary
        self._env = simpy.Environment()
        self._arrived: int | None = None
        self._under_way: list[simpy.Event | None] = [None] * n
        """The next arrival of each worker."""
        self._started = [0.0] * n
        self._iterations = [-1] * n
        """k of each worker."""
        self._pulled = [0] * n
        """The number of updates in the parameters that each worker pulled."""
        self._num_updates = 0
        self.num_dropped = 0
        """Gradients that were abandoned, or arrived and were not used."""
        self._sizes = np.zeros(n, dtype=np.int64)
        self._async_times: AsyncTimes | None = None
        self._iteration: Iteration | None = None

    @property
    def now(self) -> float:
        """Seconds of virtual time."""
        return float(self._env.now)

    def run(self, iterations: int) -> Iterator[Iteration]:
        """Yield the iterations of a synchronous scheme as they finish."""
        assert self.scheme.synchronous
        finished = (self._iteration for arrival in self.arrivals() if arrival.updated)
        for _, iteration in zip(range(iterations), finished, strict=False):
            assert iteration is not None
            yield iteration

    def arrivals(self) -> Iterator[Arrival]:
        """Yield every gradient as it arrives, without end."""
        starts = tuple(range(self._cluster.num_workers))
        while True:
            if self.scheme.synchronous:
                self._start_together(starts)
            else:
                self._start_alone(starts)
            worker = self._wait()
            starts, arrival = self._arrive(worker)
            yield arrival

    def _start_together(self, starts: tuple[int, ...]) -> None:
        """Start an iteration of all workers, unless `starts` is empty."""
        if not starts:
            return
        if self._at_boundary is not None:
            self._at_boundary(self.now)
        last = self._iteration
        number = 0 if last is None else last.number + 1
        at = self._cluster.conditions(number, self.now)
        sizes = self._planner.sizes(reports(self._cluster, number, last, at), at)
        if isinstance(self.scheme, FlexRR):
            sizes, times = run_iteration(self.scheme, self._cluster, sizes, at)
        else:
            times = self._cluster.times(sizes, at)
        self._sizes = sizes
        self._iteration = Iteration(number, self.now, at, sizes, times, np.zeros(len(sizes), bool))
        for worker, time in enumerate(times.tolist()):
            self._start(worker, number, time)

    def _start_alone(self, starts: tuple[int, ...]) -> None:
        """Start an iteration of each worker in `starts`."""
        if self._async_times is None:
            at = self._cluster.conditions(0, self.now)
            self._sizes = self._planner.sizes(reports(self._cluster, 0, None, at), at)
            self._async_times = AsyncTimes(self._cluster, self._sizes)
        now = self.now
        for worker in starts:
            number = self._iterations[worker] + 1
            self._start(worker, number, self._async_times.time(worker, number, now))

    def _start(self, worker: int, number: int, time: float) -> None:
        self._iterations[worker] = number
        self._started[worker] = self._env.now
        self._pulled[worker] = self._num_updates
        arrival = self._env.timeout(time, value=worker)
        arrival.callbacks.append(self._note)
        self._under_way[worker] = arrival
        if self._learner is not None:
            self._learner.pull(worker)

    def _wait(self) -> int:
        """Advance the clock until a gradient arrives."""
        self._arrived = None
        while self._arrived is None:
            self._env.step()
        return self._arrived

    def _note(self, arrival: simpy.Event) -> None:
        # An abandoned arrival is no longer awaited.
        worker = cast(int, arrival.value)
        if self._under_way[worker] is arrival:
            self._arrived = worker

    def _arrive(self, worker: int) -> tuple[tuple[int, ...], Arrival]:
        """Apply the scheme's answer to a gradient; return the workers to start, and the arrival."""
        answer = self.scheme.arrive(worker)
        self._under_way[worker] = None
        staleness = self._num_updates - self._pulled[worker]
        number = self._iterations[worker]
        if answer.used:
            if self._iteration is not None:
                self._iteration.used[worker] = True
            if self._learner is not None:
                self._learner.push(worker, number, self._sizes, answer.weight)
        self.num_dropped += len(answer.abandoned) + (not answer.used)
        for late in answer.abandoned:
            self._under_way[late] = None
        if answer.update:
            self._num_updates += 1
            if self._learner is not None:
                self._learner.update()
        arrival = Arrival(
            worker,
            number,
            self._started[worker],
            self._env.now,
            int(self._sizes[worker]),
            answer.used,
            staleness,
            answer.update,
        )
        return answer.starts, arrival
