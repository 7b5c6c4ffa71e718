"""Prefetching: loading processes fetch the samples of later iterations by the newest plan."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from evenstep.core import Ints, Plan
from evenstep.core.dealing import slice_of
from evenstep.pytorch.counting import Counts
from evenstep.pytorch.fetching import Key
from evenstep.training.epochs import Dealt, Epochs, deal_slice
from evenstep.training.loop import Loop


@dataclass(frozen=True, eq=False)
class UnderWay:
    """A running epoch."""

    epoch: int
    order: Ints
    position: int
    """The iteration of the epoch at which it was begun."""
    iteration: int
    """The iteration of the training at which it was begun."""

    def has_trained(self, iteration: int) -> bool:
        """Whether an iteration of it was trained on before this iteration of the training."""
        return iteration > self.iteration


class Dealing:
    """Deals out the samples of a running epoch, by a plan or, as a guess, by the newest plan."""

    def __init__(self, loop: Loop, epochs: Epochs, counts: Counts | None) -> None:
        self._loop = loop
        self._epochs = epochs
        self._divide = None if counts is None else counts.deal

    def __len__(self) -> int:
        """The number of iterations of an epoch."""
        return len(self._epochs)

    def deal(self, under_way: UnderWay, position: int, plan: Plan) -> Dealt:
        """Return this worker's samples of an iteration, and the sizes of all workers."""
        loop = self._loop
        samples = slice_of(under_way.order, position, loop.total)
        at = under_way.epoch, position
        return deal_slice(
            samples, at, plan.sizes, loop.worker, loop.minimum, loop.min_trainable, self._divide
        )

    def guess(self, under_way: UnderWay, position: int) -> list[Key] | None:
        """Return the keys of a later iteration by the newest plan; None after the last one."""
        if position >= len(self):
            return None
        return keys_of(self.deal(under_way, position, self._loop.newest_plan))


class Ahead:
    """The batch sampler of the loading processes; stores the keys that it had them fetch.

    It has no reference to the loader: in a reference cycle, an unused loader would not end its
    processes at once.
    """

    def __init__(self, dealing: Dealing) -> None:
        self._dealing = dealing
        self.under_way: UnderWay | None = None
        """The epoch of the next pass."""
        self.guesses: deque[list[Key]] = deque()
        """The guessed keys of the last pass."""

    def __iter__(self) -> Iterator[list[Key]]:
        assert self.under_way is not None
        self.guesses = deque()
        return self._noted(self.guesses, self.under_way)

    def __len__(self) -> int:
        return len(self._dealing)

    def _noted(self, guesses: deque[list[Key]], under_way: UnderWay) -> Iterator[list[Key]]:
        for position in itertools.count(under_way.position):
            keys = self._dealing.guess(under_way, position)
            if keys is None:
                return
            guesses.append(keys)
            yield keys


class Fetched:
    """The samples that loading processes fetch in one pass, with their keys."""

    def __init__(self, loading: DataLoader[Any], ahead: Ahead, under_way: UnderWay) -> None:
        ahead.under_way = under_way
        self._packs = iter(loading)
        self._guesses = ahead.guesses

    def take(self) -> tuple[list[Key], Any]:
        """Return the guessed keys of the next iteration, and their samples."""
        packed = next(self._packs)
        return self._guesses.popleft(), packed


def keys_of(dealt: Dealt) -> list[Key]:
    return [(dealt.position[0], index) for index in dealt.samples.tolist()]
