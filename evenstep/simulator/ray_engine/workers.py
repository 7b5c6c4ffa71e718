"""The crew: the workers of a run, as the coordinator sees them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evenstep.errors import EngineFailed
from evenstep.simulator.ray_engine.calls import (
    SIGNALS,
    Gone,
    Handle,
    Ref,
    first,
    get,
    keep,
    kill,
    start_actor,
)
from evenstep.simulator.ray_engine.faults import Restarts
from evenstep.simulator.ray_engine.migration import RayMigration
from evenstep.simulator.ray_engine.ray_settings import RaySettings
from evenstep.simulator.ray_engine.worker_actor import WorkerActor, WorkerDone, WorkerTask
from evenstep.simulator.workloads.workload import Workload


@dataclass(frozen=True)
class Finished:
    """A worker has finished its task."""

    worker: int
    done: WorkerDone


@dataclass(frozen=True)
class Died:
    """A worker died, or was ended because it said nothing; it is being restarted."""

    worker: int
    why: str


@dataclass(frozen=True)
class Back:
    """A worker that died runs again, and has nothing to do."""

    worker: int


News = Finished | Died | Back


@dataclass(frozen=True)
class _Awaited:
    worker: int
    deadline: float
    """When to stop waiting, on the monotonic clock."""
    task: WorkerTask | None
    """None where it is restarting."""


class RayWorkers:
    """Starts workers, gives them tasks, and hears from them; one thing from each at a time."""

    def __init__(
        self, make: Callable[[int], Handle], num_workers: int, settings: RaySettings
    ) -> None:
        """`make` starts the actor of a worker; `gather` waits until all run."""
        self._make = make
        self._settings = settings
        self._restarts = Restarts(settings.restarts)
        self._awaited: dict[Ref, _Awaited] = {}
        self.pids: dict[int, int] = {}
        """The process of each worker, on whichever machine that is."""
        self.handles: list[Handle] = []
        # One by one, so that they can be ended if the last cannot be started.
        for worker in range(num_workers):
            self.handles.append(make(worker))

    def gather(self) -> None:
        """Wait until all workers run."""
        ready = [handle.ready.remote() for handle in self.handles]
        self.pids = dict(enumerate(get(ready, self._settings.start_patience)))

    def start(self, worker: int, task: WorkerTask, shards: Sequence[Handle]) -> None:
        """Give a worker a task; it begins when it has finished or abandoned the last."""
        self._await(
            self.handles[worker].compute.remote(task, list(shards)),
            _Awaited(worker, self._deadline(task.duration + self._settings.patience), task),
        )

    def abandon(self, worker: int) -> None:
        """Let a worker drop its task; nothing is heard of it any more."""
        for ref, awaited in list(self._awaited.items()):
            if awaited.worker == worker and awaited.task is not None:
                del self._awaited[ref]
                told = self.handles[worker].abandon.options(concurrency_group=SIGNALS)
                told.remote(awaited.task.ticket)

    def wait(self) -> News:
        """Return what happens next."""
        if not self._awaited:
            raise EngineFailed("a worker must be left to wait for, got none: all have failed")
        earliest = min(awaited.deadline for awaited in self._awaited.values())
        ref = first(list(self._awaited), earliest)
        if ref is None:
            return self._overdue(earliest)
        awaited = self._awaited.pop(ref)
        try:
            result = get(ref, self._settings.patience)
        except Gone as gone:
            return self._died(awaited.worker, str(gone))
        except Exception as error:
            raise EngineFailed(f"worker {awaited.worker} must not fail, got: {error}") from error
        return self._heard(awaited, result)

    def close(self) -> None:
        """End all workers."""
        for handle in self.handles:
            kill(handle)

    def _heard(self, awaited: _Awaited, result: Any) -> News:
        if awaited.task is not None:
            return Finished(awaited.worker, result)
        self.pids[awaited.worker] = result
        return Back(awaited.worker)

    def _overdue(self, deadline: float) -> News:
        ref, late = next(r for r in self._awaited.items() if r[1].deadline == deadline)
        del self._awaited[ref]
        return self._died(late.worker, "said nothing for too long, and was ended")

    def _died(self, worker: int, why: str) -> Died:
        """Start a worker anew; it is heard of when it runs."""
        self._restarts.add(f"worker {worker}", why)
        kill(self.handles[worker])
        self.handles[worker] = self._make(worker)
        ready = self.handles[worker].ready.remote()
        deadline = self._deadline(self._settings.start_patience)
        self._await(ready, _Awaited(worker, deadline, task=None))
        return Died(worker, why)

    def _await(self, ref: Ref, awaited: _Awaited) -> None:
        self._awaited[ref] = awaited

    def _deadline(self, seconds: float) -> float:
        return time.monotonic() + seconds


def make_crew(
    num_workers: int,
    workload: Workload,
    seed: int,
    num_shards: int,
    moving: RayMigration | None,
    settings: RaySettings,
) -> RayWorkers:
    """Start the actors of all workers; with migrations, each holds its own samples only."""
    kept = keep(workload) if moving is None else moving.workload

    def make(worker: int) -> Handle:
        own = () if moving is None else moving.own(worker)
        return start_actor(
            WorkerActor, worker, kept, seed, num_shards, settings.patience, *own, num_cpus=1
        )

    return RayWorkers(make, num_workers, settings)
