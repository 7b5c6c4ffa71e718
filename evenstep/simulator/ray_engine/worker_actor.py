"""What runs in the process of a worker."""

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
from evenstep.simulator.ray_engine.parts import Divisible, OwnSamples, Part
from evenstep.simulator.workloads.workload import Workload


@dataclass(frozen=True, eq=False)
class WorkerTask:
    """One iteration of a worker."""

    ticket: int
    """No two tasks of a run have the same; later ones have larger numbers."""
    iteration: int
    """k."""
    samples: Ints
    duration: float
    """Real seconds that it must take, if it does not take longer; 0 where speeds are real."""


@dataclass(frozen=True)
class WorkerDone:
    """A task is finished: its gradient is with all shards, unless `lost` says what failed."""

    version: int = 0
    """Updates in the parameters pulled: those of the shard with the fewest."""
    time: float = 0.0
    """t, in real seconds: pull, compute and push, and nothing that the worker waited for."""
    cpu: float = 1.0
    memory: float = 1.0
    lost: str | None = None


class WorkerActor:
    """A replica that pulls, computes and pushes when it is told to."""

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
        """With `samples` it can read nothing but those, whose rows are in `parts`."""
        torch.set_num_threads(1)
        self._number = number
        self._own: OwnSamples | None = None
        if samples is not None:
            assert isinstance(workload, Divisible), workload
            self._own = OwnSamples(workload, samples, parts)
            workload = self._own.workload
        self._replica = Replica(workload, seed)
        sizes = [parameter.numel() for parameter in self._replica.parameters]
        self._layout = ShardLayout.of(sizes, len(self._replica.buffers), num_shards)
        self._patience = patience
        self._probe = UsageProbe()
        self._last: tuple[int, list[Arrays]] | None = None
        """Ticket and parts of the gradient that was computed last."""
        self._abandoned = -1
        """The largest ticket that has been abandoned."""
        self._told = threading.Condition()

    def ready(self) -> int:
        """Return the id of this process, once it runs."""
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

    def push_again(self, ticket: int, place: int, shard: Handle) -> bool:
        """Push what was computed last to a shard that has lost it; False if it is not here."""
        if self._last is None or self._last[0] != ticket:
            return False
        try:
            get(shard.push.remote(self._number, ticket, self._last[1][place]), self._patience)
        except Gone:
            return False
        return True

    def give(self, samples: Ints) -> tuple[bool, Part]:
        """Return samples of its own, which stay here for the time being; first, that they come."""
        assert self._own is not None
        return True, self._own.give(samples)

    def stage(self, migration: int, part: Part) -> None:
        """Keep samples of others until they are this worker's."""
        assert self._own is not None
        self._own.stage(migration, part)

    def change_over(self, migration: int, samples: Ints) -> None:
        """Hold these samples from now on."""
        assert self._own is not None
        self._own.change_over(migration, samples)
        self._replica.train_on(self._own.workload)

    def abandon(self, ticket: int) -> None:
        """Drop a task, if it has not been finished; heard while another call runs."""
        with self._told:
            self._abandoned = max(self._abandoned, ticket)
            self._told.notify_all()

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
        """Let time pass, unless the task is abandoned."""
        with self._told:
            self._told.wait_for(lambda: self._abandoned >= ticket, timeout=max(0.0, seconds))
