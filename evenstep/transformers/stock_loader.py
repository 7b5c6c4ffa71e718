"""The loader of the stock Trainer: what is taken from it, and the order of its samples.

The Trainer makes a DataLoader, and Accelerate deals its batches out to the workers. What they
process together in iteration k is a slice of the order of the sampler; the last slice is filled up
with samples from the beginning of the epoch, or left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from evenstep.core import as_ints
from evenstep.core.stock_order import padded
from evenstep.errors import InvalidSetting
from evenstep.pytorch.loader_options import LoadingOptions, loading_of


def check_stock_loader(stock: Any) -> None:
    """Raise InvalidSetting unless batches of this loader of the Trainer can have other sizes."""
    if not isinstance(stock, DataLoaderShard) or stock.batch_sampler is None:
        raise InvalidSetting(
            "the train data set of a balanced Trainer must have an index and a length, and each "
            "worker must read its own batches (accelerator_config dispatch_batches must not be "
            f"True), got {type(stock.dataset).__name__} in a {type(stock).__name__}"
        )
    shard = stock.batch_sampler
    if not isinstance(shard, BatchSamplerShard):
        raise InvalidSetting(
            "the batches of the Trainer must be dealt out to the workers by Accelerate, got a "
            f"{type(shard).__name__}"
        )
    if type(shard.batch_sampler) is not BatchSampler:
        raise InvalidSetting(
            "the batches of the Trainer must be those of torch's BatchSampler, as their sizes are "
            "planned (train_sampling_strategy 'batch_rebalance' plans its own), got a "
            f"{type(shard.batch_sampler).__name__}"
        )
    if not shard.even_batches:
        raise InvalidSetting(
            "accelerator_config even_batches must be True, as stock workers may have no batch at "
            "the end of an epoch otherwise, got False"
        )


class StockOrder:
    """The samples of an epoch in the order in which the stock workers process them together."""

    def __init__(self, stock: Any) -> None:
        self._batches: BatchSampler = stock.batch_sampler.batch_sampler
        self._indices = range(len(stock.dataset))
        self._generator = stock.generator
        self._length: int = len(stock) * stock.total_batch_size

    @property
    def depends_on_epoch_only(self) -> bool:
        """Whether it can be made again after a restart, without the random state of this moment."""
        sampler = self._batches.sampler
        return hasattr(sampler, "set_epoch") or type(sampler) is SequentialSampler

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        # Through a DataLoader, which draws a random number before its sampler does: some samplers
        # draw from the same generator, and give the stock order only then.
        batches: DataLoader[int] = DataLoader(
            self._indices,  # type: ignore[arg-type]
            batch_sampler=self._batches,
            collate_fn=list,
            generator=self._generator,
        )
        order = [index for batch in batches for index in batch]
        return iter(padded(as_ints(order), self._length).tolist())


def loading_of_stock(stock: Any) -> LoadingOptions:
    """Return the settings of the stock loader that hold for single samples and processes."""
    options = loading_of(stock, stock.num_workers)
    if options.get("generator") is None:
        # The seeds of loading processes are not drawn from the numbers of the stock order.
        options["generator"] = torch.Generator().manual_seed(torch.initial_seed())
    loading: LoadingOptions = options  # type: ignore[assignment]
    return loading
