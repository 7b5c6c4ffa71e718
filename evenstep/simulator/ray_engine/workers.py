"""The workers of a run on Ray, the coordinator's side."""

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
    """A worker died or was killed because it was silent; it is being restarted."""

    worker: int
    why: str


@dataclass(frozen=True)
class Back:
    """A restarted worker runs, and has no task."""

    worker: int


Event = Finished | Died | Back


@dataclass(frozen=True)
class _Awaited:
    worker: int
    deadline: float
    """End of the wait, on the monotonic clock."""
    task: WorkerTask | None
    """None while the worker is restarting."""


class RayWorkers:
    """Starts workers, gives them tasks, and returns their events."""

    def __init__(
        self, make: Callable[[int], Handle], num_workers: int, settings: RaySettings
    ) -> None:
        """`make` starts the actor of a worker; `gather` waits until all run."""
        self._make = make
        self._settings = settings
        self._restarts = Restarts(settings.restarts)
        self._awaited: dict[Ref, _Awaited] = {}
        self.pids: dict[int, int] = {}
        """The process id of each worker on its machine."""
        self.handles: list[Handle] = []
        # One by one, so that they can be killed if a later one cannot be started.
        for worker in range(num_workers):
            self.handles.append(make(worker))

    def gather(self) -> None:
        """Wait until all workers run."""
        ready = [handle.ready.remote() for handle in self.handles]
        self.pids = dict(enumerate(get(ready, self._settings.start_patience)))

    def start(self, worker: int, task: WorkerTask, shards: Sequence[Handle]) -> None:
        """Give a worker a task, which starts after it has finished or abandoned the last."""
        ref = self.handles[worker].compute.remote(task, list(shards))
        deadline = time.monotonic() + task.duration + self._settings.patience
        self._awaited[ref] = _Awaited(worker, deadline, task)

    def abandon(self, worker: int) -> None:
        """Let a worker drop its task, and ignore the result."""
        for ref, awaited in list(self._awaited.items()):
            if awaited.worker == worker and awaited.task is not None:
                del self._awaited[ref]
                abandon = self.handles[worker].abandon.options(concurrency_group=SIGNALS)
                abandon.remote(awaited.task.ticket)

    def wait(self) -> Event:
        """Return the next event."""
        if not self._awaited:
            raise EngineFailed("at least one worker must be running, got none: all have failed")
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
        return self._event(awaited, result)

    def close(self) -> None:
        """Kill all workers."""
        for handle in self.handles:
            kill(handle)

    def _event(self, awaited: _Awaited, result: Any) -> Event:
        if awaited.task is not None:
            return Finished(awaited.worker, result)
        self.pids[awaited.worker] = result
        return Back(awaited.worker)

    def _overdue(self, deadline: float) -> Event:
        ref, late = next(r for r in self._awaited.items() if r[1].deadline == deadline)
        del self._awaited[ref]
        return self._died(late.worker, "said nothing for too long, and was ended")

    def _died(self, worker: int, why: str) -> Died:
        """Restart a worker; a `Back` follows when it runs."""
        self._restarts.add(f"worker {worker}", why)
        kill(self.handles[worker])
        self.handles[worker] = self._make(worker)
        ref = self.handles[worker].ready.remote()
        deadline = time.monotonic() + self._settings.start_patience
        self._awaited[ref] = _Awaited(worker, deadline, task=None)
        return Died(worker, why)


def make_workers(
    num_workers: int,
    workload: Workload,
    seed: int,
    num_shards: int,
    migration: RayMigration | None,
    settings: RaySettings,
) -> RayWorkers:
    """Start the actors of all workers; with a migration, each holds only its own samples."""
    kept = keep(workload) if migration is None else migration.workload

    def make(worker: int) -> Handle:
        own = () if migration is None else migration.own(worker)
        return start_actor(
            WorkerActor, worker, kept, seed, num_shards, settings.patience, *own, num_cpus=1
        )

    return RayWorkers(make, num_workers, settings)
