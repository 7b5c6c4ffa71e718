"""The loader: batches of this worker, each of exactly the planned size.

Loading processes prefetch by the newest plan. If the plan changes before a batch is used, the main
process fetches the missing samples and drops those that another worker processes now. So a new size
takes effect in the next iteration, with any depth of prefetching.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torch.utils.data._utils.pin_memory import pin_memory as pin

from evenstep.core import sealed
from evenstep.core.stock_order import Pad
from evenstep.errors import InvalidSetting
from evenstep.pytorch.attribution import Attribution
from evenstep.pytorch.checks import check_process_group
from evenstep.pytorch.collective import ProcessGroupCollective
from evenstep.pytorch.counting import Counts, check_policy
from evenstep.pytorch.fetching import Key, Packing, SampledOrder, Samples, count_samples
from evenstep.pytorch.loader_options import LoaderOptions, check_loading, options_of
from evenstep.pytorch.prefetching import Ahead, Dealing, Fetched, UnderWay, keys_of
from evenstep.pytorch.stream_loader import make_stream_loader
from evenstep.pytorch.stream_source import is_stream
from evenstep.training.epochs import (
    LENGTH,
    DealingOptions,
    Dealt,
    Epochs,
    SavedPosition,
    ThroughEpochs,
)
from evenstep.training.iteration import Iteration
from evenstep.training.loop import Loop


class BalancedLoader(ThroughEpochs):
    """Iterates over the batches of one worker; made by `Balancer.loader`."""

    _is_accelerate_prepared = True
    """Makes `accelerator.prepare_data_loader` of Hugging Face return the loader as it is."""

    def __init__(
        self,
        loop: Loop,
        attribution: Attribution,
        collective: ProcessGroupCollective,
        ended: Callable[[], None],
        dataset: Dataset[Any],
        *,
        shuffle: bool = True,
        sampler: Iterable[int] | None = None,
        drop_last: bool = False,
        pad: Pad = True,
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
        self._attribution = attribution
        self._ended = ended
        """Called at the end of each epoch that was used for training."""
        self.dataset = dataset
        self._order = SampledOrder(dataset, sampler, collective)
        self._packing = Packing(collate_fn)
        self._pin_memory = pin_memory and torch.cuda.is_available()
        self._samples = Samples(dataset, seed if seed_samples else None)
        self._counts = None if counts is None else Counts(counts)
        loop.agree(
            {
                LENGTH: self._order.num_samples, "shuffle": shuffle,
                "sampler": type(sampler).__name__, "drop_last": drop_last, "pad": pad, "seed": seed,
                "seed_samples": seed_samples, "counts": repr(self._counts),
            }
        )  # fmt: skip
        if self._counts is not None:
            self._counts.check(dataset)
            check_policy(loop.policy)
        self.epochs = Epochs.of_loop(
            loop, self._order.num_samples, shuffle=shuffle, seed=seed, drop_last=drop_last, pad=pad
        )
        self._under_way: UnderWay | None = None
        """The running epoch."""
        self._handed_out: deque[tuple[Iteration, UnderWay]] = deque()
        """The batches that may be outstanding, each with where it is."""
        self.dealt: Dealt | None = None
        """This worker's samples in the batch that was handed out last, and the sizes of all."""
        self._place: Callable[[Any], Any] | None = None
        self._followed: DistributedSampler[Any] | None = None
        self._followed_epoch = 0
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
        """The number of samples of an epoch, without those that pad it."""
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

    def go_to(self, epoch: int, position: int) -> None:
        """Begin the next pass at this iteration of this epoch.

        For a loader that continues an epoch of the stock loader that it replaces. Batches of the
        last pass are given up if none was trained on, as after a look at one batch.
        """
        left = self._under_way
        if left is not None and not left.passed.has_trained:
            self._loop.forget(left.passed)
        self._settle()
        offset = min(position * self._loop.total, self.epochs.length)
        self.epochs.go_to(epoch, position, offset)

    @property
    def sampler(self) -> BalancedLoader:
        """The loader itself, for loops that call `loader.sampler.set_epoch`."""
        return self

    def follow(self, sampler: DistributedSampler[Any]) -> None:
        """Begin the epochs that are set on this sampler, which the loader replaces."""
        self._followed = sampler

    def place_with(self, place: Callable[[Any], Any]) -> None:
        """Hand out what `place` makes of each batch: the same batch on a device, say.

        Passes are then attributed to batches by the memory on the device.
        """
        self._place = place

    def __iter__(self) -> Iterator[Any]:
        self._settle()
        self._take_epoch()
        epochs, loop = self.epochs, self._loop
        order = epochs.order_of(epochs.epoch, self._order.of(epochs.epoch))
        at = under_way = UnderWay(epochs.epoch, order, epochs.position, epochs.offset)
        self._under_way, passed = under_way, under_way.passed
        fetched = self._fetched(under_way)
        try:
            while self._dealing.has_more(at):
                iteration = loop.begin(passed)
                dealt = self._dealing.deal(at, iteration.plan)
                keys = keys_of(dealt)
                if fetched is not None and not fetched.has_slices_of(iteration.plan.total):
                    # Loading processes have prefetched other slices, and begin again.
                    fetched = self._fetched(at)
                    loop.timer.spoil()
                batch = self._batch(keys, fetched)
                size = None if self._counts is None else self._counts.size_of(keys)
                batch = pin(batch) if self._pin_memory else batch
                batch = batch if self._place is None else self._place(batch)
                loop.has_batch(dealt.sizes, dealt.position, size)
                self._attribution.hand_out(iteration, len(keys), batch)
                # Before yield, as a checkpoint in the body of the loop comes after this batch.
                self._first_ahead()
                self._handed_out.append((iteration, at))
                self.dealt = dealt
                at = at.after(dealt)
                epochs.go_to(at.epoch, at.position, at.offset)
                yield batch
        finally:
            loop.leave(passed)
        loop.after(passed, self._ended)
        epochs.go_to(under_way.epoch + 1, 0, 0)

    def _take_epoch(self) -> None:
        """Take the epoch that a script has set on the sampler that was replaced."""
        if self._followed is not None and self._followed.epoch != self._followed_epoch:
            self._followed_epoch = self._followed.epoch
            self.epochs.set_epoch(self._followed_epoch)

    def _settle(self) -> None:
        """End an epoch that was left early.

        The next epoch follows, unless nothing was trained on, as in a look at one batch.
        """
        left, self._under_way = self._under_way, None
        if left is None or left.epoch != self.epochs.epoch:
            return
        self._loop.forget(left.passed)
        if left.passed.has_trained:
            self.epochs.end()
        else:
            self.epochs.go_to(left.epoch, left.position, left.offset)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader, for a checkpoint.

        With a sampler, it includes the order of the epoch.
        """
        at = self._first_ahead() or self.epochs
        state = self.epochs.state_at(at.epoch, at.position, at.offset)
        sampled = self._order.known(at.epoch)
        if sampled is not None:
            state["order"] = torch.from_numpy(sampled)
        return sealed(state)

    def check_state(self, state: Mapping[str, Any]) -> SavedPosition:
        """Return the position of a checkpoint, or raise an error if it cannot be continued."""
        saved = super().check_state(state)
        self._order.check(state.get("order"), in_mid_epoch=saved.position > 0)
        return saved

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, also with another number of workers.

        The rest of the epoch is dealt out to the current workers. The seed must be the same, and in
        mid-epoch the number of samples, too. A training that began with an earlier version of
        evenstep keeps its order, without padding. A state that is refused changes nothing.
        """
        saved = self.check_state(state)
        self.epochs.continue_from(saved)
        self._under_way = None
        self._order.restore(saved.epoch, self._order.check(state.get("order"), False))

    def _first_ahead(self) -> UnderWay | None:
        """Forget batches that were trained on, and return where the first other one is, if any."""
        outstanding = self._loop.outstanding
        while self._handed_out and self._handed_out[0][0] not in outstanding:
            self._handed_out.popleft()
        return self._handed_out[0][1] if self._handed_out else None

    def _fetched(self, at: UnderWay) -> Fetched | None:
        """Return what loading processes fetch from here on, if there are any."""
        return None if self._loading is None else Fetched(self._loading, self._ahead, at)

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


class UnboundLoader:
    """A loader whose balancer has no model yet; it becomes that of `make` when it is used.

    Trainers make loaders before they wrap the model. Until then a loader only knows its length.
    """

    _is_accelerate_prepared = True

    def __init__(
        self,
        make: Callable[[], Any],
        source: Any,
        total: int,
        options: LoaderOptions,
    ) -> None:
        self.dataset = source.dataset if isinstance(source, DataLoader) else source
        self._make = make
        self._source = source
        self._total = total
        self._options = options
        self._made: Any = None

    @property
    def bound(self) -> Any:
        """The loader itself; binds the balancer."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def __iter__(self) -> Iterator[Any]:
        return iter(self.bound)

    def __len__(self) -> int:
        """The number of iterations of an epoch."""
        if self._made is not None:
            return len(self._made)
        check_process_group()
        num_samples, num_workers = count_samples(self.dataset), dist.get_world_size()
        options: Mapping[str, Any] = self._options
        if isinstance(self._source, DataLoader):
            options = options_of(self._source, num_samples, self._total, num_workers, self._options)
        sampler = options.get("sampler")
        dealing: DealingOptions = {"drop_last": options.get("drop_last", False)}
        if "pad" in options:
            dealing["pad"] = options["pad"]
        num_samples = count_samples(self.dataset, sampler)
        return len(Epochs(num_samples, self._total, num_workers=num_workers, **dealing))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # A look for a special method, as when it is copied, must not bind the balancer.
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.bound, name)


def make_loader(
    loop: Loop,
    attribution: Attribution,
    collective: ProcessGroupCollective,
    ended: Callable[[], None],
    source: Any,
    options: LoaderOptions,
) -> Any:
    """Return the loader of a data set or stream, or one in place of a DataLoader.

    `ended` is called at the end of each epoch that was used for training. All workers must call it.
    """
    if is_stream(source):
        return make_stream_loader(loop, attribution, ended, source, options)
    for name in ("stop", "ahead"):
        if name in options:
            raise InvalidSetting(
                f"{name} goes with a stream, got it with a {type(source).__name__} of known length"
            )
    given: Mapping[str, Any] = options
    replaced = None
    if isinstance(source, DataLoader):
        # Before its checks: a worker that raised alone would leave the others waiting.
        batch_size = getattr(source.batch_sampler, "batch_size", None)
        loop.agree({"batch size of the DataLoader": batch_size})
        num_samples = count_samples(source.dataset)
        given = options_of(source, num_samples, loop.total, loop.num_workers, options)
        replaced, source = source.sampler, source.dataset
    loader = BalancedLoader(loop, attribution, collective, ended, source, **given)
    if isinstance(replaced, DistributedSampler):
        loader.follow(replaced)
    return loader
