"""The loader: batches of this worker, each of exactly the planned size.

Loading processes prefetch by the newest plan. If the plan changes before a batch is used, the main
process fetches the missing samples and drops those that another worker processes now. So a new size
takes effect in the next iteration, with any depth of prefetching.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.pin_memory import pin_memory as pin

from evenstep.pytorch.collective import ProcessGroupCollective
from evenstep.pytorch.counting import Counts, check_policy
from evenstep.pytorch.fetching import Key, Packing, Samples
from evenstep.pytorch.loader_options import LoaderOptions, check_loading, options_of
from evenstep.pytorch.order import Order, count_samples
from evenstep.pytorch.prefetching import Ahead, Dealing, Fetched, UnderWay, keys_of
from evenstep.training.epochs import LENGTH, Epochs, ThroughEpochs
from evenstep.training.loop import Loop


class BalancedLoader(ThroughEpochs):
    """Iterates over the batches of one worker; made by `Balancer.loader`."""

    _is_accelerate_prepared = True
    """Makes `accelerator.prepare_data_loader` of Hugging Face return the loader as it is."""

    def __init__(
        self,
        loop: Loop,
        collective: ProcessGroupCollective,
        ended: Callable[[], None],
        dataset: Dataset[Any],
        *,
        shuffle: bool = True,
        sampler: Iterable[int] | None = None,
        drop_last: bool = False,
        seed: int = 0,
        seed_samples: bool = False,
        counts: ArrayLike | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        num_workers: int = 0,
        **loading: Any,
    ) -> None:
        check_loading(loading)
        self._loop = loop
        self._ended = ended
        """Called at the end of each epoch that was used for training."""
        self.dataset = dataset
        self._order = Order(dataset, sampler, shuffle, seed, collective)
        self._packing = Packing(collate_fn)
        self._pin_memory = pin_memory and torch.cuda.is_available()
        self._samples = Samples(dataset, seed if seed_samples else None)
        self._counts = None if counts is None else Counts(counts)
        loop.agree(
            {
                LENGTH: self._order.num_samples, "shuffle": shuffle,
                "sampler": type(sampler).__name__, "drop_last": drop_last, "seed": seed,
                "seed_samples": seed_samples, "counts": repr(self._counts),
            }
        )  # fmt: skip
        if self._counts is not None:
            self._counts.check(dataset)
            check_policy(loop.policy)
        self.epochs = Epochs(
            self._order.num_samples, loop.total, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
        self._under_way: UnderWay | None = None
        """The running epoch."""
        self._dealing = Dealing(loop, self.epochs, self._counts)
        self._ahead = Ahead(self._dealing)
        self._loading: DataLoader[Any] | None = None
        if num_workers > 0:
            self._loading = DataLoader(
                self._samples,
                batch_sampler=self._ahead,
                collate_fn=self._packing.pack,
                num_workers=num_workers,
                **loading,
            )
        elif loading:
            # For the same errors about settings as from a stock loader.
            DataLoader(self._samples, batch_sampler=self._ahead, **loading)

    @property
    def num_samples(self) -> int:
        """The number of samples of an epoch."""
        return self.epochs.num_samples

    @property
    def batch_size(self) -> int:
        """This worker's current batch size."""
        return self._loop.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and with it the order; by default, each epoch follows the last one.

        The epoch of a restored checkpoint continues at its position.
        """
        self._settle()
        self.epochs.set_epoch(epoch)

    @property
    def sampler(self) -> BalancedLoader:
        """The loader itself, for loops that call `loader.sampler.set_epoch`."""
        return self

    def __iter__(self) -> Iterator[Any]:
        self._settle()
        epochs, loop = self.epochs, self._loop
        order = self._order.of(epochs.epoch)
        under_way = UnderWay(epochs.epoch, order, epochs.position, loop.iteration)
        self._under_way = under_way
        fetched = None
        if self._loading is not None:
            fetched = Fetched(self._loading, self._ahead, under_way)
        before = iteration = loop.now
        try:
            for position in range(under_way.position, len(self)):
                iteration = loop.begin()
                dealt = self._dealing.deal(under_way, position, iteration.plan)
                keys = keys_of(dealt)
                batch = self._batch(keys, fetched)
                size = None if self._counts is None else self._counts.size_of(keys)
                loop.has_batch(dealt.sizes, dealt.position, size)
                # Before yield, as a checkpoint in the body of the loop comes after this batch.
                epochs.position = position + 1
                yield pin(batch) if self._pin_memory else batch
        finally:
            loop.resume(before, iteration)
        # Not after an evaluation, which a worker may do alone.
        if under_way.has_trained(loop.iteration):
            self._ended()
        epochs.epoch, epochs.position, self._under_way = under_way.epoch + 1, 0, None

    def _settle(self) -> None:
        """End an epoch that was left early.

        The next epoch follows, unless nothing was trained on, as in a look at one batch.
        """
        if self._under_way is None:
            return
        if self._under_way.has_trained(self._loop.iteration):
            self.epochs.end()
        else:
            self.epochs.position = self._under_way.position
        self._under_way = None

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader, for a checkpoint.

        With a sampler, it includes the order of the epoch.
        """
        state: dict[str, Any] = dict(super().state_dict())
        sampled = self._order.sampled(self.epochs.epoch)
        if sampled is not None:
            state["order"] = torch.from_numpy(sampled)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, also with another number of workers.

        The rest of the epoch is dealt out to the current workers. Seed and total must be the same,
        and in mid-epoch the number of samples, too.
        """
        super().load_state_dict(state)
        self._under_way = None
        order = state["order"].numpy() if "order" in state else None
        self._order.restore(self.epochs.epoch, order)

    def _batch(self, keys: list[Key], fetched: Fetched | None) -> Any:
        if fetched is None:
            return self._packing.collate(self._samples.__getitems__(keys))
        guessed, packed = fetched.take()
        if guessed == keys:
            return self._packing.take_all(packed)
        have = dict(zip(guessed, self._packing.pick(packed, len(guessed)), strict=True))
        missing = [key for key in keys if key not in have]
        if missing:
            extra = self._packing.pack(self._samples.__getitems__(missing))
            have |= zip(missing, self._packing.pick(extra, len(missing)), strict=True)
        return self._packing.collate([have[key] for key in keys])


def make_loader(
    loop: Loop,
    collective: ProcessGroupCollective,
    ended: Callable[[], None],
    source: Dataset[Any] | DataLoader[Any],
    options: LoaderOptions,
) -> BalancedLoader:
    """Return the loader of a data set, or one in place of a DataLoader; all workers must call it.

    `ended` is called at the end of each epoch that was used for training.
    """
    given: Mapping[str, Any] = options
    if isinstance(source, DataLoader):
        # Before its checks: a worker that raised alone would leave the others waiting.
        batch_size = getattr(source.batch_sampler, "batch_size", None)
        loop.agree({"batch size of the DataLoader": batch_size})
        num_samples = count_samples(source.dataset)
        given = options_of(source, num_samples, loop.total, loop.num_workers, options)
        source = source.dataset
    return BalancedLoader(loop, collective, ended, source, **given)
