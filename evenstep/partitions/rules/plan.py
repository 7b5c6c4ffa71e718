"""Migration plans: target sizes of all partitions, and the transfers that lead to them.

Partition sizes that are proportional to batch sizes make all traversals equally long. With the
target sizes fixed, every surplus sample has to move once and no other has to, so the smallest
number of samples moved is the sum of the surpluses; that is what a plan here moves. How few
transfers carry them is a bin-packing problem; matching equals first and then largest with largest
needs at most n - 1 of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evenstep.core import Ints, Limits, as_ints, frozen, require, split_proportional
from evenstep.errors import InvalidSetting


@dataclass(frozen=True)
class Transfer:
    """A number of samples that one worker hands to another; workers are positions."""

    giver: int
    receiver: int
    count: int


@dataclass(frozen=True, eq=False)
class MigrationPlan:
    """The transfers of a migration, and the partition sizes that they lead to."""

    targets: Ints
    transfers: tuple[Transfer, ...]

    @property
    def num_moved(self) -> int:
        """How many samples move."""
        return sum(transfer.count for transfer in self.transfers)


def target_sizes(num_samples: int, batch_sizes: ArrayLike, limits: Limits) -> Ints:
    """Return partition sizes that follow the batch sizes, add up, and keep to the limits.

    The limits are those of partitions: a minimum, and a cap where the disk has one. A worker
    with batch size 0 keeps as few samples as the limits allow.

    >>> target_sizes(1000, [64, 96, 128, 160, 192], Limits.of(5))
    array([100, 150, 200, 250, 300])
    >>> target_sizes(10, [0, 6, 2], Limits.of(3))
    array([1, 7, 2])
    """
    batch_sizes = as_ints(batch_sizes)
    require(batch_sizes >= 0, "batch size must be >= 0", batch_sizes)
    if limits.num_workers != len(batch_sizes):
        raise InvalidSetting(
            f"limits must be those of {len(batch_sizes)} workers, got {limits.num_workers}"
        )
    working = batch_sizes > 0
    if not working.any():
        raise InvalidSetting(f"some batch size must be > 0, got {batch_sizes.tolist()}")
    lowest = np.where(working, limits.minimum, np.minimum(limits.minimum, limits.cap))
    room = int(np.minimum(limits.cap, num_samples)[working].sum() + lowest[~working].sum())
    if room >= num_samples:
        limits = limits.tighten(cap=np.where(working, limits.cap, lowest))
    return split_proportional(num_samples, np.maximum(batch_sizes, 1).astype(np.float64), limits)


def targets_when(
    leaving: Collection[str],
    names: Sequence[str],
    sizes: ArrayLike,
    batch_sizes: ArrayLike | None,
    minimum: int = 1,
) -> Ints:
    """Return the target sizes when some workers leave: 0 for them, by batch sizes for the others.

    Without batch sizes they follow the partition sizes: nothing moves between workers that stay,
    and nothing to an empty partition, such as that of a worker that left before.

    >>> targets_when({"c"}, ["a", "b", "c"], [100, 200, 60], None)
    array([120, 240,   0])
    >>> targets_when({"c"}, ["a", "b", "c"], [100, 0, 60], None)
    array([160,   0,   0])
    >>> targets_when({"c"}, ["a", "b", "c"], [100, 200, 60], [1, 1, 5])
    array([180, 180,   0])
    """
    sizes = as_ints(sizes)
    wanted = sizes if batch_sizes is None else as_ints(batch_sizes)
    if unknown := sorted(set(leaving).difference(names)):
        raise InvalidSetting(f"leaving workers must be among {', '.join(names)}, got {unknown[0]}")
    stays = np.array([name not in leaving for name in names], dtype=bool)
    if not stays.any():
        raise InvalidSetting(f"at least one worker must stay, got {', '.join(names)} as leaving")
    if len(wanted) != len(sizes):
        raise InvalidSetting(f"batch sizes must be those of {len(sizes)} workers, got {wanted}")
    targets = np.zeros_like(sizes)
    least = minimum if batch_sizes is not None else np.minimum(minimum, sizes[stays])
    limits = Limits.of(int(stays.sum()), least)
    targets[stays] = target_sizes(int(sizes.sum()), wanted[stays], limits)
    return targets


def plan_migration(sizes: ArrayLike, targets: ArrayLike) -> MigrationPlan:
    """Return the plan that leads from these partition sizes to the targets.

    >>> plan = plan_migration([200, 200, 200, 200, 200], [100, 150, 200, 250, 300])
    >>> plan.num_moved
    150
    >>> [(t.giver, t.receiver, t.count) for t in plan.transfers]
    [(0, 4, 100), (1, 3, 50)]
    """
    sizes, targets = as_ints(sizes), frozen(targets)
    if sizes.shape != targets.shape or int(sizes.sum()) != int(targets.sum()):
        raise InvalidSetting(
            "targets must be sizes of as many partitions with as many samples, "
            f"got {targets.tolist()} for {sizes.tolist()}"
        )
    surplus = sizes - targets
    equal = _match_equals(surplus)
    for transfer in equal:
        surplus[transfer.giver] = surplus[transfer.receiver] = 0
    return MigrationPlan(targets, (*equal, *_match_largest(surplus)))


def _match_equals(surplus: Ints) -> list[Transfer]:
    """Return the transfers that settle a giver and a receiver exactly."""
    wanting: dict[int, list[int]] = {}
    for receiver in np.flatnonzero(surplus < 0)[::-1]:
        wanting.setdefault(-int(surplus[receiver]), []).append(int(receiver))
    return [
        Transfer(int(giver), wanting[count].pop(), count)
        for giver in np.flatnonzero(surplus > 0)
        if wanting.get(count := int(surplus[giver]))
    ]


def _match_largest(surplus: Ints) -> list[Transfer]:
    """Return the transfers of the rest, each from the largest surplus to the largest need."""
    givers = [(-int(surplus[i]), int(i)) for i in np.flatnonzero(surplus > 0)]
    receivers = [(int(surplus[i]), int(i)) for i in np.flatnonzero(surplus < 0)]
    heapq.heapify(givers)
    heapq.heapify(receivers)
    transfers = []
    while givers:
        (left, giver), (wanted, receiver) = heapq.heappop(givers), heapq.heappop(receivers)
        count = min(-left, -wanted)
        transfers.append(Transfer(giver, receiver, count))
        if left + count:
            heapq.heappush(givers, (left + count, giver))
        if wanted + count:
            heapq.heappush(receivers, (wanted + count, receiver))
    return transfers
