"""Somebody looks at a batch, and trains on nothing, when a migration has just ended."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from evenstep.core import Floats
from evenstep.partitions import MigrationRule
from evenstep.partitions.handover.task import MigrationOutcome
from evenstep.pytorch.local_loader import LocalLoader
from evenstep.pytorch.local_migration import LocalMigration
from evenstep.pytorch.local_source import AllSamples, Snapshot
from evenstep.training.iteration import Pass
from tests.pytorch_partitions.test_units import CAPS, SIZES, Fake


class FirstOfTwo:
    """The loop of the first of two workers, whose batches are three times as large."""

    def __init__(self) -> None:
        self.worker, self.total, self.min_trainable, self.iteration = 0, 8, 1, 0
        self.newest_plan = SimpleNamespace(sizes=np.array([6, 2]))
        self.collective, self.away = Twins(), nullcontext
        self.spoilt: list[str] = []
        self.outstanding: list[Any] = []
        self.timer = SimpleNamespace(spoil=lambda: self.spoilt.append("time"))

    def begin(self, of: Pass) -> Any:
        self.running = of
        return SimpleNamespace(number=self.iteration, plan=self.newest_plan)

    def leave(self, of: Pass) -> None: ...
    def forget(self, of: Pass) -> None: ...
    def after(self, of: Pass, call: Any) -> None: ...
    def has_batch(self, *batch: Any, **more: Any) -> None: ...
    def note(self, iteration: int, text: str) -> None: ...


class Changing:
    """A source that has other samples from now on, as the other worker's has."""

    folder = None

    def read(self) -> Snapshot:
        return Snapshot(TensorDataset(torch.arange(40, 80)), 40, 3, 80)


class Twins:
    """The collective of two workers who have the same to say."""

    worker, num_workers = 0, 2

    def everybody(self, row: Floats) -> Floats:
        return np.stack([row, row])


def looking(outcome: MigrationOutcome) -> tuple[LocalLoader, LocalMigration, list[str]]:
    """Train until a migration has ended, and look at a batch; return whose time was spoilt, too."""
    loop: Any = FirstOfTwo()
    fake: Any = Fake()
    source: Any = Changing()
    migration = LocalMigration(MigrationRule(threshold=1.0), SIZES, CAPS, fake, fake)
    snapshot = Snapshot(TensorDataset(torch.arange(40)), 40, 2, 80)
    everybody = AllSamples(SIZES, np.array([2, 4]), CAPS, "")
    attribution: Any = SimpleNamespace(hand_out=lambda *batch: None)
    how = loop, attribution, lambda: None
    loader = LocalLoader(*how, source, snapshot, everybody, migration)
    while loader.num_migrations == 0:
        for _ in loader:
            loop.iteration += 1
            loop.running.has_trained = True
    fake.outcome = outcome
    migration.hear(np.array([migration.say(), 0.0]))
    assert loop.spoilt == []
    next(iter(loader))
    return loader, migration, loop.spoilt


def test_who_looks_does_not_forget_that_a_migration_has_failed():
    loader, migration, spoilt = looking(MigrationOutcome(0, ("no room",), is_over=False))
    # The rule counts from here again, as it does on workers that did not look.
    next(iter(loader))
    assert loader.num_migrations == 1
    assert migration.state.traversals.consumed.tolist() == [6, 2]
    assert spoilt == []


def test_who_looks_begins_the_new_partition_with_the_same_batch():
    loader, migration, spoilt = looking(MigrationOutcome(10, (), is_over=True))
    seen = [next(iter(loader))[0].tolist() for _ in range(2)]
    assert seen[0] == seen[1]
    assert min(seen[0]) >= 40
    assert migration.state.traversals.consumed.tolist() == [6, 2]
    # Loading was restarted in that iteration, whose time says nothing about the worker.
    assert spoilt == ["time"]
