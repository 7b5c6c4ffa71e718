"""Batches of planned sizes: a DataIter for arrays, and a loader for Gluon's data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from evenstep.core import Ints, as_ints
from evenstep.errors import InvalidSetting
from evenstep.mxnet.sources import Arrays, ArraySource
from evenstep.training.epochs import DealingOptions, Epochs, ThroughEpochs
from evenstep.training.loop import Loop, batches

if TYPE_CHECKING:
    from typing_extensions import Unpack


class DealtIter(ThroughEpochs, mx.io.DataIter):  # type: ignore[misc]  # MXNet is not annotated
    """A DataIter whose batch size can be set at any time, and holds from the next batch on.

    `sizes` are the batch sizes of all workers, which add up to `total`; this worker gets its part
    of each iteration's samples by them. `Balancer.iter` makes one that sets them by the plan.
    """

    def __init__(
        self,
        data: Arrays,
        label: Arrays = None,
        *,
        total: int,
        worker: int = 0,
        num_workers: int = 1,
        minimum: int = 1,
        data_name: str = "data",
        label_name: str = "softmax_label",
        min_trainable: int = 1,
        loop: Loop | None = None,
        **dealing: Unpack[DealingOptions],
    ) -> None:
        super().__init__(-(-total // num_workers))
        self._source = ArraySource(data, label, data_name, label_name)
        num_samples = self._source.num_samples
        self.epochs = (
            Epochs.of_loop(loop, num_samples, **dealing)
            if loop is not None
            else Epochs(
                num_samples, total, num_workers=num_workers, min_trainable=min_trainable, **dealing
            )
        )
        self._worker = worker
        self._minimum = minimum
        self._loop = loop
        self._sizes: Ints = np.diff(np.arange(num_workers + 1) * total // num_workers)

    @property
    def provide_data(self) -> list[Any]:
        """The shapes of the data, with an even batch."""
        return self._source.describe(self.batch_size)[0]

    @property
    def provide_label(self) -> list[Any]:
        """The shapes of the labels, with an even batch."""
        return self._source.describe(self.batch_size)[1]

    @property
    def sizes(self) -> Ints:
        """The batch sizes of all workers."""
        return self._sizes

    @sizes.setter
    def sizes(self, sizes: Sequence[int] | Ints) -> None:
        given = as_ints(list(sizes))
        if len(given) != len(self._sizes) or given.sum() != self.epochs.total or given.min() < 0:
            raise InvalidSetting(
                f"sizes must be those of {len(self._sizes)} workers, at least 0 each, and add up "
                f"to {self.epochs.total}, got {given.tolist()}"
            )
        self._sizes = given

    def next(self) -> Any:
        """Return this worker's part of the next iteration, or raise StopIteration."""
        if self.epochs.position >= len(self.epochs):
            raise StopIteration
        if self._loop is not None:
            self.sizes = self._loop.begin().plan.sizes
        dealt = self.epochs.deal(self._sizes, self._worker, self._minimum)
        assert dealt is not None, "the epoch has not ended"
        batch = self._source.batch(dealt.samples)
        self.epochs.advance()
        if self._loop is not None:
            self._loop.has_batch(dealt.sizes, dealt.position)
        return batch

    def reset(self) -> None:
        """Start the next epoch, unless this one has just begun."""
        if self.epochs.position > 0:
            self.epochs.end()

    def __iter__(self) -> Iterator[Any]:
        if self.epochs.position >= len(self.epochs):
            self.reset()
        return self


class BalancedLoader(ThroughEpochs):
    """Batches of a Gluon data set; replaces a `gluon.data.DataLoader`."""

    def __init__(
        self,
        dataset: Any,
        loop: Loop,
        batchify_fn: Callable[[list[Any]], Any] | None,
        **dealing: Unpack[DealingOptions],
    ) -> None:
        self._dataset = dataset
        self._loop = loop
        self._batchify = batchify_fn or mx.gluon.data.dataloader.default_batchify_fn
        self.epochs = Epochs.of_loop(loop, len(dataset), **dealing)

    def __iter__(self) -> Iterator[Any]:
        for dealt in batches(self._loop, self.epochs):
            yield self._batchify([self._dataset[int(sample)] for sample in dealt.samples])
