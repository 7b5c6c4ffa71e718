"""Somebody looks at a batch, and trains on nothing, when a migration has just ended."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from evenstep.partition import MigrationRule
from evenstep.pytorch.beside import Outcome
from evenstep.pytorch.local_loader import LocalLoader
from evenstep.pytorch.local_migration import Lent, LocalMigration
from evenstep.pytorch.local_source import Everybody, LocalSource
from evenstep.pytorch.rider import Seat
from evenstep.training.meeting import Alone
from tests.pytorch_partitions.test_units import CAPS, SIZES, Fake


class FirstOfTwo:
    """The balancer of the first of two workers, whose batches are three times as large."""

    def __init__(self) -> None:
        self.worker, self.total, self.fewest, self.iteration = 0, 8, 1, 0
        self.newest_plan = SimpleNamespace(sizes=np.array([6, 2]))

    def begin(self) -> Any:
        return SimpleNamespace(number=self.iteration, plan=self.newest_plan)

    def interrupted(self) -> None: ...
    def go_on(self, iteration: Any, last: Any) -> None: ...
    def has_batch(self, *told: Any, **more: Any) -> None: ...
    def average_buffers(self) -> None: ...


def test_who_looks_does_not_forget_that_a_migration_has_failed():
    balancer: Any = FirstOfTwo()
    fake: Any = Fake()
    migration = LocalMigration(MigrationRule(threshold=1.0), SIZES, CAPS, fake, fake)
    source = LocalSource(TensorDataset(torch.arange(40)))
    everybody = Everybody(SIZES, np.array([1, 2]), CAPS, "")
    lent = Lent(Seat(), nullcontext, lambda iteration, text: None, Alone())
    loader = LocalLoader(balancer, source, source.read(), everybody, lent, migration)
    while loader.num_migrations == 0:
        for _ in loader:
            balancer.iteration += 1
    fake.outcome = Outcome(0, ("no room",), is_over=False)
    migration.hear(np.array([migration.say(), 0.0]))
    next(iter(loader))
    # The rule counts anew from here, as it does on workers that did not look.
    next(iter(loader))
    assert loader.num_migrations == 1
    assert migration.state.traversals.consumed.tolist() == [6, 2]
