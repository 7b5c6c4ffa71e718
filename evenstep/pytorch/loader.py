"""The loader: this worker's batches, each exactly as large as the plan of its iteration says.

Loading processes fetch ahead what the plan of today would need tomorrow. When the plan has changed
by then, the main process fetches the few samples that are missing and drops those that became
somebody else's: a new size takes effect in the next iteration, however deep the prefetching.
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
from evenstep.pytorch.loader_options import check_loading
from evenstep.pytorch.order import Order
from evenstep.pytorch.prefetching import Ahead, Dealing, Fetched, UnderWay, keys_of
from evenstep.training.epochs import LENGTH, Epochs, ThroughEpochs
from evenstep.training.loop import Loop


class BalancedLoader(ThroughEpochs):
    """Iterates over the batches of one worker; made by `Balancer.loader`."""

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
        """Is called at the end of an epoch that was trained on."""
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
        """The epoch that was begun last, until its end."""
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
            # The same complaints about settings as from a stock loader.
            DataLoader(self._samples, batch_sampler=self._ahead, **loading)

    @property
    def num_samples(self) -> int:
        """How many samples an epoch has."""
        return self.epochs.num_samples

    @property
    def batch_size(self) -> int:
        """This worker's batch size of the moment."""
        return self._loop.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and with it the order; without it, epochs count themselves.

        An epoch that a checkpoint was made in goes on where it was made.
        """
        self._settle()
        self.epochs.set_epoch(epoch)

    @property
    def sampler(self) -> BalancedLoader:
        """What a stock loop calls `loader.sampler.set_epoch` of: the loader itself."""
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
                # Before the batch is out: a checkpoint made in the loop's body comes after it.
                epochs.position = position + 1
                yield pin(batch) if self._pin_memory else batch
        finally:
            loop.resume(before, iteration)
        # Not after an evaluation, which a worker may well do alone.
        if under_way.has_trained(loop.iteration):
            self._ended()
        epochs.epoch, epochs.position, self._under_way = under_way.epoch + 1, 0, None

    def _settle(self) -> None:
        """Be done with an epoch that was left early.

        The next one follows; unless nothing was trained on, as when somebody looks at a batch.
        """
        if self._under_way is None:
            return
        if self._under_way.has_trained(self._loop.iteration):
            self.epochs.end()
        else:
            self.epochs.position = self._under_way.position
        self._under_way = None

    def state_dict(self) -> dict[str, Any]:
        """Return where in which epoch the loader is, for a checkpoint.

        With a sampler, the order of the epoch is part of it.
        """
        state: dict[str, Any] = dict(super().state_dict())
        sampled = self._order.sampled(self.epochs.epoch)
        if sampled is not None:
            state["order"] = torch.from_numpy(sampled)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was made, also with another number of workers.

        What remains of the epoch is dealt out to the workers that are there. Seed and total must be
        the same, and in mid-epoch the number of samples.
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
