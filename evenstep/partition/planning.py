"""From what partitions hold, and batch sizes, to the hand-overs that make them fit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from evenstep.core.arrays import Ints
from evenstep.errors import InvalidSetting
from evenstep.partition.choice import assign_samples
from evenstep.partition.leaving import targets_when
from evenstep.partition.task import CHUNK_SIZE, Task
from evenstep.partition.transfers import plan_migration


@dataclass(frozen=True, eq=False)
class Holding:
    """What a partition holds."""

    name: str
    samples: Ints
    labels: Ints | None = None
    """By which samples are stratified, if all partitions have them."""
    open_hand_overs: Collection[str] = ()


def plan_hand_overs(
    holdings: Sequence[Holding],
    batch_sizes: ArrayLike | None,
    migration: str,
    minimum: int = 1,
    seed: int = 0,
    chunk_size: int = CHUNK_SIZE,
    largest: int | None = None,
    leaving: Collection[str] = (),
) -> tuple[Task, ...]:
    """Return the hand-overs that make partitions follow the batch sizes.

    `migration` is a name that no migration had before. With `largest`, a transfer of more samples
    than that becomes several hand-overs. The partitions of those who are `leaving` are shared out
    to the others; without batch sizes that is all that moves.

    >>> import numpy as np
    >>> a, b = Holding("a", np.arange(0, 6)), Holding("b", np.arange(6, 12))
    >>> tasks = plan_hand_overs([a, b], [1, 3], "m1", largest=2)
    >>> [(task.hand_over, task.giver, task.receiver, len(task.samples)) for task in tasks]
    [('m1-0', 'a', 'b', 2), ('m1-1', 'a', 'b', 1)]
    """
    for holding in holdings:
        if holding.open_hand_overs:
            begun = ", ".join(sorted(holding.open_hand_overs))
            raise InvalidSetting(f"{holding.name} must have no open hand-overs, got {begun}")
    sizes = [len(holding.samples) for holding in holdings]
    names = [holding.name for holding in holdings]
    targets = targets_when(leaving, names, sizes, batch_sizes, minimum)
    plan = plan_migration(sizes, targets)
    known = [holding.labels for holding in holdings if holding.labels is not None]
    chosen = assign_samples(
        plan.transfers,
        [holding.samples for holding in holdings],
        seed,
        known if len(known) == len(holdings) else None,
    )
    pieces = [
        (transfer, samples[at : at + (largest or len(samples))])
        for transfer, samples in zip(plan.transfers, chosen, strict=True)
        for at in range(0, len(samples), largest or len(samples))
    ]
    return tuple(
        Task(
            f"{migration}-{number}",
            holdings[transfer.giver].name,
            holdings[transfer.receiver].name,
            tuple(samples.tolist()),
            chunk_size,
        )
        for number, (transfer, samples) in enumerate(pieces)
    )
