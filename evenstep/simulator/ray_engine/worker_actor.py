"""The actor of a worker."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from evenstep.core import Ints
from evenstep.measure.usage import UsageProbe
from evenstep.simulator.engine.replica import Replica
from evenstep.simulator.engine.sharding import ShardLayout
from evenstep.simulator.ray_engine.calls import Arrays, Gone, Handle, get, pack, unpack
from evenstep.simulator.ray_engine.parts import Divisible, HeldSamples, Part
from evenstep.simulator.workloads.workload import Workload


@dataclass(frozen=True, eq=False)
class WorkerTask:
    """One iteration of a worker."""

    ticket: int
    """Unique in a run, and increasing."""
    iteration: int
    """k."""
    samples: Ints
    duration: float
    """Real seconds that the task takes at least; 0 for real speeds."""


@dataclass(frozen=True)
class WorkerDone:
    """A finished task: all shards have its gradient, unless `lost` names a failure."""

    version: int = 0
    """Updates in the pulled parameters: the least of all shards."""
    time: float = 0.0
    """t, in real seconds: pull, compute and push, without waiting for others."""
    cpu: float = 1.0
    memory: float = 1.0
    lost: str | None = None


class WorkerActor:
    """A replica that pulls, computes and pushes on request."""

    def __init__(
        self,
        number: int,
        workload: Workload,
        seed: int,
        num_shards: int,
        patience: float,
        samples: Ints | None = None,
        *parts: Part,
    ) -> None:
        """With `samples` the worker holds only those, with their rows in `parts`."""
        torch.set_num_threads(1)
        self._number = number
        self._own: HeldSamples | None = None
        if samples is not None:
            assert isinstance(workload, Divisible), workload
            self._own = HeldSamples(workload, samples, parts)
            workload = self._own.workload
        self._replica = Replica(workload, seed)
        sizes = [parameter.numel() for parameter in self._replica.parameters]
        self._layout = ShardLayout.of(sizes, len(self._replica.buffers), num_shards)
        self._patience = patience
        self._probe = UsageProbe()
        self._last: tuple[int, list[Arrays]] | None = None
        """Ticket and parts of the last gradient."""
        self._abandoned = -1
        """The largest abandoned ticket."""
        self._abandoning = threading.Condition()

    def ready(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def compute(self, task: WorkerTask, shards: Sequence[Handle]) -> WorkerDone:
        start = time.perf_counter()
        try:
            version = self._compute(task, shards)
        except Gone as gone:
            return WorkerDone(lost=f"a shard {gone}")
        self._sleep(task.ticket, start + task.duration - time.perf_counter())
        usage = self._probe.read()
        return WorkerDone(version, time.perf_counter() - start, usage.cpu, usage.memory)

    def push_again(self, ticket: int, shard: int, handle: Handle) -> bool:
        """Push the last gradient to a shard that has lost it; False if it is not here."""
        if self._last is None or self._last[0] != ticket:
            return False
        try:
            get(handle.push.remote(self._number, ticket, self._last[1][shard]), self._patience)
        except Gone:
            return False
        return True

    def give(self, samples: Ints) -> tuple[bool, Part]:
        """Return True, a small result to wait for, and a copy of held samples."""
        assert self._own is not None
        return True, self._own.give(samples)

    def stage(self, migration: int, part: Part) -> None:
        """Keep samples of other workers until the change-over."""
        assert self._own is not None
        self._own.stage(migration, part)

    def change_over(self, migration: int, samples: Ints) -> None:
        """Hold these samples from now on."""
        assert self._own is not None
        self._own.change_over(migration, samples)
        self._replica.train_on(self._own.workload)

    def abandon(self, ticket: int) -> None:
        """Drop an unfinished task; runs concurrently with other calls."""
        with self._abandoning:
            self._abandoned = max(self._abandoned, ticket)
            self._abandoning.notify_all()

    def _compute(self, task: WorkerTask, shards: Sequence[Handle]) -> int:
        """Pull, compute and push; return the version of the parameters used."""
        if self._abandoned >= task.ticket:
            return 0
        pulled = get([shard.pull.remote() for shard in shards], self._patience)
        parameters = self._layout.join([unpack(arrays) for _, arrays in pulled])
        samples = task.samples if self._own is None else self._own.positions(task.samples)
        gradients = self._replica.gradients(parameters, samples)
        parts = [pack(part) for part in self._layout.split(gradients)]
        self._last = (task.ticket, parts)
        if self._abandoned < task.ticket:
            pushed = zip(shards, parts, strict=True)
            get(
                [shard.push.remote(self._number, task.ticket, part) for shard, part in pushed],
                self._patience,
            )
        versions: list[int] = [version for version, _ in pulled]
        return min(versions)

    def _sleep(self, ticket: int, seconds: float) -> None:
        """Sleep until the time has passed or the task is abandoned."""
        with self._abandoning:
            self._abandoning.wait_for(lambda: self._abandoned >= ticket, timeout=max(0.0, seconds))
