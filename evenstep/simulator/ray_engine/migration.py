"""Migrations on Ray: the coordinator's side, which tracks the samples of each worker."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np

from evenstep.core import Ints
from evenstep.errors import InvalidSetting
from evenstep.simulator.engine.local_samples import LocalSamples
from evenstep.simulator.engine.samples import Samples
from evenstep.simulator.ray_engine.calls import Gone, Handle, Ref, get, keep
from evenstep.simulator.ray_engine.faults import Faults
from evenstep.simulator.ray_engine.parts import Divisible, Part
from evenstep.simulator.workloads.workload import Workload


class RayMigration:
    """Keeps references to the parts that workers hold, and moves samples between them."""

    def __init__(self, workload: Divisible, partitions: Sequence[Ints], patience: float) -> None:
        self._patience = patience
        self._partitions = tuple(np.sort(partition) for partition in partitions)
        self._parts = [[keep(Part(some, workload.rows(some)))] for some in self._partitions]
        """References to the parts that each worker has received, in Ray's object store."""
        self._empty = keep(workload.with_rows(workload.rows(partitions[0][:0])))
        self._number = 0

    @property
    def workload(self) -> Ref:
        """The workload without training samples."""
        return self._empty

    def own(self, worker: int) -> tuple[Any, ...]:
        """Return the samples and parts of a worker, as arguments of its actor."""
        return (self._partitions[worker], *self._parts[worker])

    def move(self, workers: Sequence[Handle], after: Sequence[Ints]) -> bool:
        """Move samples so that workers hold those of `after`; False if nothing has changed."""
        self._number += 1
        coming: list[tuple[int, Ref]] = []
        try:
            asked = [
                (receiver, workers[giver].give.options(num_returns=2).remote(samples))
                for giver, receiver in permutations(range(len(workers)), 2)
                if len(samples := np.intersect1d(self._partitions[giver], after[receiver]))
            ]
            get([done for _, (done, _) in asked], self._patience)
            coming = [(receiver, part) for receiver, (_, part) in asked]
            staged = [workers[to].stage.remote(self._number, part) for to, part in coming]
            get(staged, self._patience)
        except Gone:
            return False
        for receiver, part in coming:
            self._parts[receiver].append(part)
        self._partitions = tuple(after)
        pairs = zip(workers, after, strict=True)
        changed = [worker.change_over.remote(self._number, samples) for worker, samples in pairs]
        # A dead worker is restarted with its new samples, and a slow one changes over before its
        # next task.
        with contextlib.suppress(Gone):
            get(changed, self._patience)
        return True


def check_divisible(workload: Workload, samples: Samples | None) -> None:
    """Raise InvalidSetting if workers must hold partitions but samples are not rows of arrays."""
    if isinstance(samples, LocalSamples) and not isinstance(workload, Divisible):
        raise InvalidSetting(
            f"workers on Ray can hold partitions of samples that are rows of arrays, "
            f"got {workload.name}"
        )


def make_migration(
    workload: Workload, samples: Samples | None, patience: float
) -> RayMigration | None:
    """Return the migration of a run whose workers hold their own samples, else None."""
    if not (isinstance(samples, LocalSamples) and isinstance(workload, Divisible)):
        return None
    return RayMigration(workload, samples.partitions, patience)


def move_or_note(
    migration: RayMigration,
    workers: Sequence[Handle],
    faults: Faults,
    iteration: int,
    after: Sequence[Ints],
) -> bool:
    """Move samples; if a worker is gone, note that the migration was called off."""
    moved = migration.move(workers, after)
    if not moved:
        what = "was called off, as a worker is gone; it is tried again at the next boundary"
        faults.note("migration", iteration, what)
    return moved
