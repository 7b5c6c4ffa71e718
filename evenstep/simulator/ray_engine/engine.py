"""The Ray engine: coordinates workers and shards that run as Ray actors.

This process holds the scheme and the planner and moves no tensors: workers pull from the shards and
push to them directly. It waits for the next event (a gradient, a death, a restarted worker), asks
the scheme for its consequences, and starts workers. Synchronous schemes ask the planner at every
iteration boundary, and no worker starts before it has answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.engine.iteration import Arrival, Fault, Iteration, reports
from evenstep.simulator.engine.local_samples import LocalSamples, push_weight
from evenstep.simulator.engine.samples import Samples
from evenstep.simulator.engine.virtual import SizeSource
from evenstep.simulator.ray_engine.clock import Clock
from evenstep.simulator.ray_engine.faults import Faults
from evenstep.simulator.ray_engine.pace import make_pace
from evenstep.simulator.ray_engine.ray_settings import RaySettings
from evenstep.simulator.ray_engine.server import Pushed, RayServer
from evenstep.simulator.ray_engine.worker_actor import WorkerDone, WorkerTask
from evenstep.simulator.ray_engine.workers import Back, Died, Finished, RayWorkers
from evenstep.simulator.schemes import Answer, Scheme

Watcher = Callable[["RayEngine", int, int], None]
"""Called with a worker and its iteration after the worker was started."""


class RayEngine:
    """Runs a scheme on workers and a server, with the sizes of a planner."""

    def __init__(
        self,
        cluster: Cluster,
        planner: SizeSource,
        scheme: Scheme,
        samples: Samples,
        workers: RayWorkers,
        server: RayServer,
        settings: RaySettings,
        clock: Clock,
        faults: Faults,
        weighted: bool = True,
        watch: Watcher | None = None,
    ) -> None:
        n = cluster.num_workers
        self.scheme = scheme
        self.clock = settings.clock
        self.num_dropped = 0
        """Gradients that were abandoned, or arrived and were not used."""
        self._cluster = cluster
        self._planner = planner
        self._samples = samples
        self._workers = workers
        self._server = server
        self._pace = make_pace(cluster, settings.scale)
        self._scale = settings.scale or 1.0
        self._clock = clock
        self._faults = faults
        self._weighted = weighted
        self._watch = watch
        self._num_tickets = 0
        self._tasks: list[WorkerTask | None] = [None] * n
        """The task of each worker, until its gradient has arrived or is abandoned."""
        self._benched: deque[int] = deque()
        """Workers with an empty batch: they arrive as soon as they start."""
        self._started = [0.0] * n
        self._iterations = [-1] * n
        """k of each worker."""
        self.sizes = np.zeros(n, dtype=np.int64)
        """x of each worker in the current iteration."""
        self._iteration: Iteration | None = None

    @property
    def now(self) -> float:
        """Seconds of the run: real ones, or those of the emulated cluster."""
        return self._clock.now

    def arrivals(self) -> Iterator[Arrival]:
        """Yield every gradient as it arrives, without end; the clock stops during the yield."""
        starts = tuple(range(self._cluster.num_workers))
        while True:
            with self._clock.running():
                arrival = None
                while arrival is None:
                    self._start(starts)
                    starts, arrival = self._handle_next()
            yield arrival

    @property
    def faults(self) -> list[Fault]:
        """Failures of workers and shards so far."""
        return self._faults.noted

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each worker and shard on its machine."""
        workers = {f"worker {worker}": pid for worker, pid in self._workers.pids.items()}
        return workers | {f"shard {shard}": pid for shard, pid in self._server.pids.items()}

    def _start(self, starts: tuple[int, ...]) -> None:
        """Start workers; restarted ones repeat their task."""
        new = [worker for worker in starts if self._tasks[worker] is None]
        if new and self.scheme.synchronous:
            self._plan_together(new)
        elif new:
            self._plan_alone(new)
        for worker in starts:
            self._send(worker)

    def _plan_together(self, starts: list[int]) -> None:
        """Plan an iteration of all workers."""
        if isinstance(self._samples, LocalSamples):
            self._samples.boundary(self.now)
        last = self._iteration
        number = 0 if last is None else last.number + 1
        at = self._pace.conditions(number, self.now)
        sizes = self._planner.sizes(reports(self._cluster, number, last, at), at)
        durations = self._pace.together(sizes, at)
        unknown, unused = np.full(len(sizes), np.nan), np.zeros(len(sizes), bool)
        self.sizes = sizes
        self._iteration = Iteration(number, self.now, at, sizes, unknown, unused)
        for worker in starts:
            self._give(worker, number, float(durations[worker]))

    def _plan_alone(self, starts: list[int]) -> None:
        """Plan an iteration of each worker; batch sizes stay those of the first plan."""
        if not self.sizes.any():
            at = self._pace.conditions(0, self.now)
            self.sizes = self._planner.sizes(reports(self._cluster, 0, None, at), at)
        for worker in starts:
            number = self._iterations[worker] + 1
            self._give(worker, number, self._pace.alone(worker, number, self.sizes, self.now))

    def _give(self, worker: int, number: int, duration: float) -> None:
        samples = self._samples.deal(worker, number, self.sizes)
        self._tasks[worker] = WorkerTask(self._num_tickets, number, samples, duration)
        self._num_tickets += 1
        self._iterations[worker] = number
        self._started[worker] = self.now

    def _send(self, worker: int) -> None:
        task = self._tasks[worker]
        assert task is not None, worker
        if len(task.samples):
            self._workers.start(worker, task, self._server.handles)
        else:
            self._benched.append(worker)
        if self._watch is not None:
            self._watch(self, worker, task.iteration)

    def _handle_next(self) -> tuple[tuple[int, ...], Arrival | None]:
        """Wait for the next event; return the workers to start, and the arrival, if any."""
        if self._benched:
            return self._arrive(self._benched.popleft(), WorkerDone(self._server.version))
        event = self._workers.wait()
        if isinstance(event, Died):
            return self._lose(event), None
        if isinstance(event, Back):
            return self._apply(self.scheme.join(event.worker)), None
        if event.done.lost is not None:
            return self._retry(event), None
        return self._arrive(event.worker, event.done)

    def _arrive(self, worker: int, done: WorkerDone) -> tuple[tuple[int, ...], Arrival]:
        """Apply the scheme's answer to a gradient."""
        task = self._tasks[worker]
        assert task is not None, worker
        self._tasks[worker] = None
        answer = self.scheme.arrive(worker)
        staleness = self._server.version - done.version
        if answer.used and len(task.samples):
            self._pace.measured(worker, done)
            self._use(worker, task, answer.weight, done.time / self._scale)
        if not answer.used:
            self._drop(worker, task)
        arrival = Arrival(
            worker,
            task.iteration,
            self._started[worker],
            self.now,
            len(task.samples),
            answer.used,
            staleness,
            answer.update,
        )
        return self._apply(answer), arrival

    def _use(self, worker: int, task: WorkerTask, weight: float, time: float) -> None:
        if self._iteration is not None:
            self._iteration.used[worker] = True
            self._iteration.times[worker] = time
        factor = push_weight(self._samples, worker, self.sizes, self._weighted)
        # The server of ASP and SSP has the scheme's weight, 1/n, in its learning rate.
        factor = factor * weight if self.scheme.synchronous else factor
        self._server.count(Pushed(worker, task.ticket, factor, self._workers.handles[worker]))

    def _apply(self, answer: Answer) -> tuple[int, ...]:
        """Abandon tasks and update as an answer says; return the workers to start."""
        for late in answer.abandoned:
            self._workers.abandon(late)
            self._drop(late, self._tasks[late])
        if answer.update:
            self._server.update()
        return answer.starts

    def _lose(self, died: Died) -> tuple[int, ...]:
        """Continue without a worker until it is back; plain BSP waits for it instead."""
        worker = died.worker
        waits = self.scheme.synchronous and self.scheme.num_counted == len(self._tasks)
        how = "the others wait" if waits else "the others continue"
        self._note(worker, f"{died.why}; restarting, {how}")
        if waits:
            return ()
        if self.scheme.synchronous:
            self._forget(worker, self._tasks[worker])
        return self._apply(self.scheme.leave(worker))

    def _drop(self, worker: int, task: WorkerTask | None) -> None:
        """Drop a gradient."""
        self._forget(worker, task)
        self.num_dropped += 1

    def _forget(self, worker: int, task: WorkerTask | None) -> None:
        if task is not None and isinstance(self._samples, LocalSamples):
            self._samples.unused(worker, len(task.samples))
        self._tasks[worker] = None

    def _retry(self, event: Finished) -> tuple[int, ...]:
        """Let a worker that could not reach a shard repeat its task."""
        self._note(event.worker, f"{event.done.lost}; starts again")
        self._server.replace_dead()
        return (event.worker,)

    def _note(self, worker: int, what: str) -> None:
        self._faults.note(f"worker {worker}", self._iterations[worker], what)
