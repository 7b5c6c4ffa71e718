"""The data set of a loop: this worker's batches, each of the size that was planned last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from evenstep.tensorflow.fetching import Map, Samples
from evenstep.training.epochs import Epochs
from evenstep.training.loop import Loop, batches


class BalancedDataset:
    """This worker's part of every iteration; to be gone through once per epoch.

    A batch is asked for when its plan is known, and not before, so that a plan holds from the next
    batch on. Epochs count themselves unless you call `set_epoch`.
    """

    def __init__(
        self,
        loop: Loop,
        tensors: Any,
        map: Map | None,
        begun: Callable[[], None] = lambda: None,
        **how: Any,
    ) -> None:
        self._loop = loop
        self._begun = begun
        """Is called in every iteration, before its batch is fetched."""
        self._samples = Samples(tensors, map)
        self.epochs = Epochs(self._samples.count, loop.total, fewest=loop.fewest, **how)
        loop.agree(self.epochs.common_settings)
        self.element_spec = self._samples.element_spec
        """The signature of a function that takes a batch: it is traced once, for all sizes."""

    def __len__(self) -> int:
        """The number of iterations of an epoch."""
        return len(self.epochs)

    def __iter__(self) -> Iterator[Any]:
        for dealt in batches(self._loop, self.epochs):
            self._begun()
            yield self._samples.fetch(tf.constant(dealt.samples, tf.int64))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; without it, epochs count themselves."""
        self.epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """Return where in which epoch this is, for a checkpoint."""
        return self.epochs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was made, also with another number of workers."""
        self.epochs.load_state_dict(state)
