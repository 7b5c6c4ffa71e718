"""The Ray engine: the coordinator of workers and shards that run for real.

This process holds the scheme and the planner, and moves no tensors: workers pull from the shards
and push to them by themselves. It waits for whatever happens next (a gradient, a death, a worker
that is back), asks the scheme what follows from it, and starts who may start. Under the BSP kinds
the planner is asked at every iteration boundary, and nobody starts before it has answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from evenstep.core.gradient_weight import gradient_weight
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.engine.iteration import Arrival, Fault, Iteration, reports
from evenstep.simulator.engine.local_samples import LocalSamples, counted
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
"""Is called with a worker and its iteration when it has been started."""


class RayEngine:
    """Runs a scheme on a crew and a server, with the sizes of a planner."""

    def __init__(
        self,
        cluster: Cluster,
        planner: SizeSource,
        scheme: Scheme,
        samples: Samples,
        crew: RayWorkers,
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
        """Gradients that were abandoned, or came in and were not used."""
        self._cluster = cluster
        self._planner = planner
        self._samples = samples
        self._crew = crew
        self._server = server
        self._pace = make_pace(cluster, settings.scale)
        self._scale = settings.scale or 1.0
        self._clock = clock
        self._faults = faults
        self._weighted = weighted
        self._watch = watch
        self._num_tickets = 0
        self._tasks: list[WorkerTask | None] = [None] * n
        """What each worker has to do, until its gradient has come in or is abandoned."""
        self._benched: deque[int] = deque()
        """Workers whose batch is empty: they have arrived as soon as they start."""
        self._started = [0.0] * n
        self._iterations = [-1] * n
        """k of each worker."""
        self.sizes = np.zeros(n, dtype=np.int64)
        """x of each worker, in the iteration of now."""
        self._iteration: Iteration | None = None

    @property
    def now(self) -> float:
        """Seconds of the run: real ones, or those of the cluster that is emulated."""
        return self._clock.now

    def arrivals(self) -> Iterator[Arrival]:
        """Yield every gradient as it has come in, without end; the clock stands still meanwhile."""
        starts = tuple(range(self._cluster.num_workers))
        while True:
            with self._clock.running():
                arrival = None
                while arrival is None:
                    self._start(starts)
                    starts, arrival = self._go_on()
            yield arrival

    @property
    def faults(self) -> list[Fault]:
        """Workers and shards that failed so far."""
        return self._faults.noted

    @property
    def pids(self) -> dict[str, int]:
        """The process of each worker and shard, on whichever machine that is."""
        workers = {f"worker {worker}": pid for worker, pid in self._crew.pids.items()}
        return workers | {f"shard {place}": pid for place, pid in self._server.pids.items()}

    def _start(self, starts: tuple[int, ...]) -> None:
        """Let workers start; those that were restarted do again what they had to do."""
        new = [worker for worker in starts if self._tasks[worker] is None]
        if new and self.scheme.synchronous:
            self._plan_together(new)
        elif new:
            self._plan_alone(new)
        for worker in starts:
            self._send(worker)

    def _plan_together(self, starts: list[int]) -> None:
        """Begin an iteration of all workers."""
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
        """Begin an iteration of each worker's own; batch sizes are those of the beginning."""
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
            self._crew.start(worker, task, self._server.handles)
        else:
            self._benched.append(worker)
        if self._watch is not None:
            self._watch(self, worker, task.iteration)

    def _go_on(self) -> tuple[tuple[int, ...], Arrival | None]:
        """Wait for what happens next; return who starts now, and the gradient that came in."""
        if self._benched:
            return self._arrive(self._benched.popleft(), WorkerDone(self._server.version))
        news = self._crew.wait()
        if isinstance(news, Died):
            return self._lose(news), None
        if isinstance(news, Back):
            return self._apply(self.scheme.join(news.worker)), None
        if news.done.lost is not None:
            return self._do_again(news), None
        return self._arrive(news.worker, news.done)

    def _arrive(self, worker: int, done: WorkerDone) -> tuple[tuple[int, ...], Arrival]:
        """Do with a gradient as the scheme says."""
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
        factor = 1.0
        if self._weighted:
            counts = counted(self._samples, self.sizes)
            factor = gradient_weight(int(counts[worker]), int(counts.sum()), len(counts))
        # The server of ASP and SSP has the scheme's weight, 1/n, in its learning rate.
        factor = factor * weight if self.scheme.synchronous else factor
        self._server.count(Pushed(worker, task.ticket, factor, self._crew.handles[worker]))

    def _apply(self, answer: Answer) -> tuple[int, ...]:
        """Do what follows for others than the worker that has arrived; return who starts."""
        for late in answer.abandoned:
            self._crew.abandon(late)
            self._drop(late, self._tasks[late])
        if answer.update:
            self._server.update()
        return answer.starts

    def _lose(self, died: Died) -> tuple[int, ...]:
        """Go on without a worker until it is back; plain BSP waits for it instead."""
        worker = died.worker
        waits = self.scheme.synchronous and self.scheme.num_counted == len(self._tasks)
        how = "the others wait" if waits else "the others go on"
        self._note(worker, f"{died.why}; restarting, {how}")
        if waits:
            return ()
        if self.scheme.synchronous:
            self._forget(worker, self._tasks[worker])
        return self._apply(self.scheme.leave(worker))

    def _drop(self, worker: int, task: WorkerTask | None) -> None:
        """Do without a gradient."""
        self._forget(worker, task)
        self.num_dropped += 1

    def _forget(self, worker: int, task: WorkerTask | None) -> None:
        if task is not None and isinstance(self._samples, LocalSamples):
            self._samples.unused(worker, len(task.samples))
        self._tasks[worker] = None

    def _do_again(self, news: Finished) -> tuple[int, ...]:
        """Let a worker that could not reach a shard do its task again."""
        self._note(news.worker, f"{news.done.lost}; starts again")
        self._server.mend()
        return (news.worker,)

    def _note(self, worker: int, what: str) -> None:
        self._faults.note(f"worker {worker}", self._iterations[worker], what)
