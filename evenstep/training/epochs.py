"""Epochs: deals out the samples of each iteration to the workers, in every framework alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from evenstep.core import UNLIMITED, Ints, SavedState, require_whole, sealed
from evenstep.core.dealing import borrow, deal, num_iterations, numpy_order, sizes_within
from evenstep.core.stock_order import Pad, check_pad, padded, padded_length, stock_order
from evenstep.errors import InvalidSetting

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from evenstep.training.loop import Loop

LENGTH = "dataset length"
ORDER = "order of epochs"
"""The key of a checkpoint for the order it was made in. One of an earlier version has none: that
order was numpy's, without padding, and is kept to the end of the training."""

_IN_MID_EPOCH = (LENGTH, "shuffle")
"""Settings that may change between two epochs."""

Divide = Callable[[Ints, Ints, int, int], tuple[Ints, Ints]]
"""From samples, sizes, the smallest size and a worker to its samples and the sizes of all."""


class DealingOptions(TypedDict, total=False):
    """Options of the loaders of all frameworks for the order of samples."""

    shuffle: bool
    seed: int
    drop_last: bool
    """Whether to leave out the last iteration of an epoch if it is smaller than the others."""
    pad: Pad
    """Whether an epoch repeats samples, so that their number is a multiple of the workers'."""


@dataclass(frozen=True, eq=False)
class Dealt:
    """The part of an iteration that one worker processes."""

    samples: Ints
    """Indices of its samples; borrowed ones, at weight 0, if its planned size is 0."""
    sizes: Ints
    """x of all workers: the planned sizes, or fewer at the end of an epoch."""
    position: tuple[int, int]
    """(epoch, iteration of the epoch)."""


class Epochs:
    """Deals out the samples of one epoch after the other.

    The samples of an iteration are a slice of the order of the whole data set, which is that of
    torch's DistributedSampler for `num_workers`: it depends only on `seed` + epoch (without
    `shuffle` it is the order of the data set), and `pad` says how it ends.
    """

    def __init__(
        self,
        num_samples: int,
        total: int,
        *,
        num_workers: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        pad: Pad = True,
        min_trainable: int = 1,
    ) -> None:
        require_whole("the number of samples", num_samples, least=0)
        check_pad(pad)
        self.num_samples = num_samples
        self._total = total
        self._loop: Loop | None = None
        self._num_workers = num_workers
        self._shuffle = shuffle
        self._seed = seed
        self._drop_last = drop_last
        self._pad = pad
        self._min_trainable = min_trainable
        """The smallest batch that the model can be trained on."""
        self._is_stock = True
        """Whether the order is that of DistributedSampler, or that of earlier versions."""
        self._order: tuple[int, Ints] | None = None
        self.epoch = 0
        self.position = 0
        """The next iteration of the epoch."""
        self.offset = 0
        """The samples of the epoch that earlier iterations had, whatever their totals were."""
        if len(self) == 0:
            raise InvalidSetting(
                f"an epoch must have at least one iteration, got {num_samples} samples for a "
                f"total of {total} with drop_last={drop_last}"
            )

    @classmethod
    def of_loop(cls, loop: Loop, num_samples: int, **dealing: Unpack[DealingOptions]) -> Epochs:
        """Return the epochs of a loop, for its workers and with its total, which may change."""
        epochs = cls(
            num_samples, loop.total, num_workers=loop.num_workers,
            min_trainable=loop.min_trainable, **dealing,
        )  # fmt: skip
        epochs._loop = loop
        return epochs

    @property
    def total(self) -> int:
        """X of the next iteration."""
        return self._total if self._loop is None else self._loop.total

    def __len__(self) -> int:
        """The number of iterations of an epoch, if the rest of it keeps the total."""
        return self.position + self.count_left(self.offset, self.total)

    @property
    def length(self) -> int:
        """The number of samples of an epoch, with repeated ones and without those left out."""
        if not self._is_stock:
            return self.num_samples
        return padded_length(self.num_samples, self._num_workers, self._pad)

    def count_left(self, offset: int, total: int) -> int:
        """Return how many iterations of this total an epoch has left after `offset` samples."""
        # Repeated samples fill an iteration up, but do not make another one, which could happen
        # where the total is no multiple of the number of workers.
        end = self.length if self._drop_last else min(self.length, self.num_samples)
        return num_iterations(max(0, end - offset), total, self._drop_last)

    @property
    def common_settings(self) -> dict[str, Any]:
        """The settings that must be the same on all workers."""
        return {
            LENGTH: self.num_samples,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "drop_last": self._drop_last,
            "pad": self._pad,
        }

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; by default, each epoch follows the last one."""
        if epoch != self.epoch:
            self.go_to(epoch, 0, 0)

    def go_to(self, epoch: int, position: int, offset: int) -> None:
        """Continue with this iteration of this epoch, before which it had `offset` samples."""
        self.epoch, self.position, self.offset = epoch, position, offset

    def deal(self, sizes: Ints, worker: int, minimum: int = 1) -> Dealt | None:
        """Return the part of a worker in the next iteration, by the planned sizes of all workers.

        Returns None after the end of the epoch.

        >>> epochs = Epochs(6, total=4, shuffle=False)
        >>> epochs.deal(np.array([1, 3]), worker=1).samples.tolist()
        [2, 3, 1]
        """
        self._total = int(sizes.sum())
        if not self.count_left(self.offset, self._total):
            return None
        if self._order is None or self._order[0] != self.epoch:
            self._order = self.epoch, self.order_of(self.epoch)
        samples = self._order[1][self.offset : self.offset + self._total]
        at = self.epoch, self.position
        return deal_slice(samples, at, sizes, worker, minimum, self._min_trainable)

    def advance(self) -> None:
        """Move on to the iteration after the one that was dealt out last."""
        offset = min(self.offset + self._total, self.length)
        self.go_to(self.epoch, self.position + 1, offset)

    def end(self) -> None:
        """Move on to the next epoch."""
        self.go_to(self.epoch + 1, 0, 0)

    def order_of(self, epoch: int, sampled: Ints | None = None) -> Ints:
        """Return the samples of an epoch in order; those that a sampler gave, if it has one."""
        if sampled is not None:
            order = sampled
        elif not self._shuffle:
            order = np.arange(self.num_samples)
        else:
            shuffled = stock_order if self._is_stock else numpy_order
            order = shuffled(self.num_samples, self._seed, epoch)
        return padded(order, self.length)

    def state_dict(self) -> dict[str, Any]:
        """Return the position (epoch, iteration and samples), for a checkpoint."""
        return sealed(self.state_at(self.epoch, self.position, self.offset))

    def state_at(self, epoch: int, position: int, offset: int) -> dict[str, Any]:
        """Return the state at a position, with the shape of what it is a position in."""
        return {
            "epoch": epoch,
            "position": position,
            "offset": offset,
            "total": self.total,
            "one total": offset == min(position * self.total, self.length),
            "epoch length": self.length,
            ORDER: "stock" if self._is_stock else "numpy",
            **self._kept,
        }

    @property
    def _kept(self) -> dict[str, int]:
        return {"seed": self._seed, LENGTH: self.num_samples, "shuffle": bool(self._shuffle)}

    def check_state(self, state: Mapping[str, Any]) -> SavedPosition:
        """Return the position of a checkpoint, or raise an error if it cannot be continued."""
        position = SavedPosition.of(state)
        check_position(state, self._kept)
        return position

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, also with another number of workers or another total.

        A training that began with an earlier version keeps its order. A state that is refused
        changes nothing.
        """
        self.continue_from(self.check_state(state))

    def continue_from(self, saved: SavedPosition) -> None:
        """Continue at the position of a checkpoint, which was checked."""
        self._is_stock, self._order = saved.is_stock, None
        self.go_to(saved.epoch, saved.position, min(saved.offset, self.length))


@dataclass(frozen=True)
class SavedPosition:
    """The position of a checkpoint, whose fields fit each other."""

    epoch: int
    position: int
    offset: int
    is_stock: bool

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> SavedPosition:
        """Read the state of `Epochs`, or raise StateFileError.

        >>> saved = {"epoch": 0, "position": 4, "seed": 0, "total": 10, "dataset length": 100}
        >>> SavedPosition.of(saved).offset
        40
        >>> SavedPosition.of(saved | {"position": 99})
        Traceback (most recent call last):
        evenstep.errors.StateFileError: position of a saved loader must be at most 10, got 99
        """
        saved = SavedState("a loader", state, "epoch", "position", "total", "seed", LENGTH)
        epoch, num_samples = (saved.whole(name, most=UNLIMITED) for name in ("epoch", LENGTH))
        total = saved.whole("total", least=1, most=UNLIMITED)
        saved.whole("seed", least=-(2**63), most=2**64)
        # Earlier versions did not store the length: no iteration begins after the last sample.
        length, longest = num_samples + total - 1, num_samples
        if "epoch length" in saved:
            length = saved.whole("epoch length", most=UNLIMITED)
            longest = max(num_samples, length)
        # Otherwise all that is known is that every iteration has at least one sample.
        one_total = saved.flag("one total") if "one total" in saved else "offset" not in saved
        most = -(-longest // total) if one_total else length
        position = saved.whole("position", most=most)
        offset = min(position * total, length)
        if "offset" in saved:
            given = saved.whole("offset", least=position, most=length)
            if given != offset and (one_total or not position):
                raise saved.wrong("offset", f"{offset} after {position} iterations of {total}")
            offset = given
        if "shuffle" in saved:
            saved.flag("shuffle")
        if ORDER in saved and saved[ORDER] not in ("stock", "numpy"):
            raise saved.wrong(ORDER, "'stock' or 'numpy'")
        is_stock = ORDER in saved and saved[ORDER] == "stock"
        return cls(epoch, position, offset, is_stock)


class ThroughEpochs:
    """Methods of loaders that iterate over epochs."""

    epochs: Epochs

    def __len__(self) -> int:
        """The number of iterations of an epoch, if the rest of it keeps the total."""
        return len(self.epochs)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; by default, each epoch follows the last one."""
        self.epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position (epoch, iteration and samples), for a checkpoint."""
        return self.epochs.state_dict()

    def check_state(self, state: Mapping[str, Any]) -> SavedPosition:
        """Return the position of a checkpoint, or raise an error if it cannot be continued."""
        return self.epochs.check_state(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, also with another number of workers."""
        self.epochs.load_state_dict(state)


def deal_slice(
    samples: Ints,
    position: tuple[int, int],
    sizes: Ints,
    worker: int,
    minimum: int,
    min_trainable: int,
    divide: Divide | None = None,
) -> Dealt:
    """Return the part of a worker in the samples of an iteration, by the planned sizes of all.

    A worker with a size of 0 borrows `min_trainable` samples, the smallest batch that it can run,
    at weight 0. A custom `divide` follows the sizes approximately.
    """
    least = max(minimum, min_trainable)
    within = sizes_within(sizes, len(samples), least)
    if divide is None:
        mine = deal(samples, within, worker)
    else:
        mine, within = divide(samples, within, least, worker)
    if len(mine) == 0:
        mine = borrow(samples, len(sizes), worker, min_trainable)
    return Dealt(mine, within, position)


def check_position(state: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise InvalidSetting, with all that differs, unless a loader fits a checkpoint.

    The data set may have grown since, but not in mid-epoch, as that would change the order.

    >>> saved = {"epoch": 3, "position": 7, "seed": 0, "total": 64, "dataset length": 1000}
    >>> check_position(saved | {"position": 0}, {"seed": 0, "dataset length": 1200})
    >>> check_position(saved, {"seed": 0, "dataset length": 1200})
    Traceback (most recent call last):
    ...
    evenstep.errors.InvalidSetting: the loader's dataset length must be that of the checkpoint,
    1000, got 1200 in mid-epoch
    """
    problems = [
        f"the loader's {what} must be that of the checkpoint, {state[what]}, got {got}"
        f"{' in mid-epoch' if what in _IN_MID_EPOCH else ''}"
        for what, got in settings.items()
        if what in state and state[what] != got and (state["position"] or what not in _IN_MID_EPOCH)
    ]
    if problems:
        raise InvalidSetting("; ".join(problems))
