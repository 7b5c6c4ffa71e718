"""The data set of a loop: this worker's batches, each of the size in the newest plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from evenstep.tensorflow.fetching import Map, TensorSamples
from evenstep.training.epochs import DealingOptions, Epochs, ThroughEpochs
from evenstep.training.loop import Loop, batches

if TYPE_CHECKING:
    from typing_extensions import Unpack


class BalancedDataset(ThroughEpochs):
    """This worker's part of every iteration; iterate over it once per epoch.

    A batch is fetched when its plan is known, and not before, so that a plan holds from the next
    batch on. Epochs are counted automatically unless you call `set_epoch`.
    """

    def __init__(
        self,
        loop: Loop,
        tensors: Any,
        map: Map | None,
        begun: Callable[[], None] = lambda: None,
        **how: Unpack[DealingOptions],
    ) -> None:
        self._loop = loop
        self._begun = begun
        """Called in every iteration, before its batch is fetched."""
        self._samples = TensorSamples(tensors, map)
        self.epochs = Epochs.of_loop(loop, self._samples.count, **how)
        loop.agree(self.epochs.common_settings)
        self.element_spec = self._samples.element_spec
        """The signature of a function that takes a batch, so that it is traced once."""

    def __iter__(self) -> Iterator[Any]:
        for dealt in batches(self._loop, self.epochs):
            self._begun()
            yield self._samples.fetch(tf.constant(dealt.samples, tf.int64))
