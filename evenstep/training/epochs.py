"""Epochs: deals out the samples of each iteration to the workers, in every framework alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from evenstep.core import Ints
from evenstep.core.dealing import borrow, deal, num_iterations, shuffled, sizes_within, slice_of
from evenstep.core.short_form import require_whole
from evenstep.errors import InvalidSetting

LENGTH = "dataset length"

Divide = Callable[[Ints, Ints, int, int], tuple[Ints, Ints]]
"""From samples, sizes, the smallest size and a worker to its samples and the sizes of all."""


class DealingOptions(TypedDict, total=False):
    """Options of the loaders of all frameworks for the order of samples."""

    shuffle: bool
    seed: int
    drop_last: bool
    """Whether to leave out the last iteration of an epoch if it is smaller than the others."""


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

    The samples of an iteration are a slice of the order of the whole data set, which depends only
    on `seed` and the epoch; without `shuffle` it is the order of the data set itself.
    """

    def __init__(
        self,
        num_samples: int,
        total: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        min_trainable: int = 1,
    ) -> None:
        require_whole("the number of samples", num_samples, least=0)
        self.num_samples = num_samples
        self.total = total
        self._shuffle = shuffle
        self._seed = seed
        self._drop_last = drop_last
        self._min_trainable = min_trainable
        """The smallest batch that the model can be trained on."""
        self._order: tuple[int, Ints] | None = None
        self.epoch = 0
        self.position = 0
        """The next iteration of the epoch."""
        if len(self) == 0:
            raise InvalidSetting(
                f"an epoch must have at least one iteration, got {num_samples} samples for a "
                f"total of {total} with drop_last={drop_last}"
            )

    def __len__(self) -> int:
        """The number of iterations of an epoch."""
        return num_iterations(self.num_samples, self.total, self._drop_last)

    @property
    def common_settings(self) -> dict[str, Any]:
        """The settings that must be the same on all workers."""
        return {
            LENGTH: self.num_samples,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "drop_last": self._drop_last,
        }

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; by default, each epoch follows the last one."""
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def deal(self, sizes: Ints, worker: int, minimum: int = 1) -> Dealt | None:
        """Return the part of a worker in the next iteration, by the planned sizes of all workers.

        Returns None after the end of the epoch.

        >>> epochs = Epochs(6, total=4, shuffle=False)
        >>> epochs.deal(np.array([1, 3]), worker=1).samples.tolist()
        [2, 3, 1]
        """
        if self.position >= len(self):
            return None
        samples = slice_of(self._order_of(self.epoch), self.position, self.total)
        at = self.epoch, self.position
        return deal_slice(samples, at, sizes, worker, minimum, self._min_trainable)

    def advance(self) -> None:
        """Move on to the next iteration of the epoch."""
        self.position += 1

    def end(self) -> None:
        """Move on to the next epoch."""
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Return the position (epoch and iteration), for a checkpoint."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            **self._kept,
        }

    @property
    def _kept(self) -> dict[str, int]:
        return {"seed": self._seed, "total": self.total, LENGTH: self.num_samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, also with another number of workers."""
        check_position(state, self._kept)
        self.epoch, self.position = int(state["epoch"]), int(state["position"])

    def _order_of(self, epoch: int) -> Ints:
        if self._order is None or self._order[0] != epoch:
            order = (
                shuffled(self.num_samples, self._seed, epoch)
                if self._shuffle else np.arange(self.num_samples)
            )  # fmt: skip
            self._order = (epoch, order)
        return self._order[1]


class ThroughEpochs:
    """Methods of loaders that iterate over epochs."""

    epochs: Epochs

    def __len__(self) -> int:
        """The number of iterations of an epoch."""
        return len(self.epochs)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; by default, each epoch follows the last one."""
        self.epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position (epoch and iteration), for a checkpoint."""
        return self.epochs.state_dict()

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
    """Raise InvalidSetting unless the settings of a loader are those of a checkpoint.

    The data set may have grown since, but not in mid-epoch, as that would change the order.

    >>> saved = {"epoch": 3, "position": 7, "seed": 0, "total": 64, "dataset length": 1000}
    >>> check_position(saved | {"position": 0}, {"seed": 0, "dataset length": 1200})
    >>> check_position(saved, {"seed": 0, "dataset length": 1200})
    Traceback (most recent call last):
    ...
    evenstep.errors.InvalidSetting: the loader's dataset length must be that of the checkpoint,
    1000, got 1200 in mid-epoch
    """
    for what, got in settings.items():
        where = " in mid-epoch" if what == LENGTH else ""
        if state[what] != got and (state["position"] or not where):
            raise InvalidSetting(
                f"the loader's {what} must be that of the checkpoint, {state[what]}, got {got}"
                f"{where}"
            )
