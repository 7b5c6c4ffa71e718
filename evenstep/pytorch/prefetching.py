"""Prefetching: loading processes fetch the samples of later iterations by the newest plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch.utils.data import DataLoader

from evenstep.core import Ints, Plan
from evenstep.pytorch.counting import Counts
from evenstep.pytorch.fetching import Key
from evenstep.training.epochs import Dealt, Epochs, deal_slice
from evenstep.training.iteration import Pass
from evenstep.training.loop import Loop


@dataclass(frozen=True, eq=False)
class UnderWay:
    """A running epoch, at one of its iterations."""

    epoch: int
    order: Ints
    position: int
    """The iteration of the epoch."""
    offset: int
    """The samples of the epoch that earlier iterations had."""
    passed: Pass = field(default_factory=Pass)

    def after(self, dealt: Dealt) -> UnderWay:
        """Return the same epoch at the iteration after the one that was dealt out."""
        offset = self.offset + int(dealt.sizes.sum())
        return replace(self, position=self.position + 1, offset=offset)


class Dealing:
    """Deals out the samples of a running epoch, by a plan or, as a guess, by the newest plan."""

    def __init__(self, loop: Loop, epochs: Epochs, counts: Counts | None) -> None:
        self._loop = loop
        self._epochs = epochs
        self._divide = None if counts is None else counts.deal

    def __len__(self) -> int:
        """The number of iterations of an epoch."""
        return len(self._epochs)

    @property
    def total(self) -> int:
        """X of the next iteration."""
        return self._loop.total

    def has_more(self, at: UnderWay) -> bool:
        """Whether the epoch has an iteration here, or has ended."""
        return self._epochs.count_left(at.offset, self.total) > 0

    def deal(self, at: UnderWay, plan: Plan) -> Dealt:
        """Return this worker's samples of an iteration, and the sizes of all workers."""
        loop = self._loop
        samples = at.order[at.offset : at.offset + plan.total]
        position = at.epoch, at.position
        return deal_slice(
            samples, position, plan.sizes, loop.worker, loop.minimum, loop.min_trainable,
            self._divide,
        )  # fmt: skip

    def guess(self, at: UnderWay) -> Dealt | None:
        """Return the part of a later iteration by the newest plan; None after the last one."""
        return self.deal(at, self._loop.newest_plan) if self.has_more(at) else None


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

    @property
    def total(self) -> int:
        """X of the next guess."""
        return self._dealing.total

    def _noted(self, guesses: deque[list[Key]], at: UnderWay) -> Iterator[list[Key]]:
        while (guessed := self._dealing.guess(at)) is not None:
            guesses.append(keys_of(guessed))
            yield guesses[-1]
            at = at.after(guessed)


class Fetched:
    """The samples that loading processes fetch in one pass, with their keys."""

    def __init__(self, loading: DataLoader[Any], ahead: Ahead, under_way: UnderWay) -> None:
        ahead.under_way = under_way
        self._loading, self._ahead, self._total = loading, ahead, ahead.total
        self._packs = iter(loading)
        self._guesses = ahead.guesses

    def has_slices_of(self, total: int) -> bool:
        """Whether the next samples are those of an iteration of this total.

        They are not if another pass has begun meanwhile, and persistent processes fetch for that.
        """
        is_ours = self._guesses is self._ahead.guesses or not self._loading.persistent_workers
        return is_ours and self._total == total

    def take(self) -> tuple[list[Key], Any]:
        """Return the guessed keys of the next iteration, and their samples."""
        packed = next(self._packs)
        return self._guesses.popleft(), packed


def keys_of(dealt: Dealt) -> list[Key]:
    return [(dealt.position[0], index) for index in dealt.samples.tolist()]
