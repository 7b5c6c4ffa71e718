"""The loader: this worker's batches, each exactly as large as the plan of its iteration says.

Loading processes fetch ahead what the plan of today would need tomorrow. When the plan has changed
by then, the main process fetches the few samples that are missing and drops those that became
somebody else's: a new size takes effect in the next iteration, however deep the prefetching.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import ArrayLike
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.pin_memory import pin_memory as pin

from evenstep.core.arrays import Ints
from evenstep.core.dealing import borrow, deal, num_iterations, sizes_within, slice_of
from evenstep.core.plan import Plan
from evenstep.errors import InvalidSetting
from evenstep.pytorch.counting import Counts
from evenstep.pytorch.fetching import Key, Packing, Samples
from evenstep.pytorch.order import Order
from evenstep.pytorch.prefetching import Ahead, Fetched, UnderWay
from evenstep.training.epochs import LENGTH, check_place
from evenstep.training.meeting import require_agreement

if TYPE_CHECKING:
    from evenstep.pytorch.balancing import Balancing


class BalancedLoader:
    """Iterates over the batches of one worker; made by `Balancer.loader`."""

    def __init__(
        self,
        balancer: Balancing,
        dataset: Dataset[Any],
        *,
        shuffle: bool = True,
        sampler: Sequence[int] | None = None,
        drop_last: bool = False,
        seed: int = 0,
        seed_samples: bool = False,
        counts: ArrayLike | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        num_workers: int = 0,
        **loading: Any,
    ) -> None:
        self._balancer = balancer
        self.dataset = dataset
        self._order = Order(dataset, sampler, shuffle, seed, balancer.side_group)
        self.num_samples = self._order.num_samples
        self._drop_last = drop_last
        self._seed = seed
        self._packing = Packing(collate_fn)
        self._pin_memory = pin_memory and torch.cuda.is_available()
        self._seed_samples = seed_samples
        self._samples = Samples(dataset, seed if seed_samples else None)
        self._counts = None if counts is None else Counts(counts)
        self._common = {"shuffle": shuffle, "sampler": type(sampler).__name__}
        self._epoch = 0
        self._position = 0
        self.under_way: UnderWay | None = None
        """The epoch that was begun last, until its end."""
        check_loading(loading)
        self._ahead = Ahead(self)
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

    def __len__(self) -> int:
        """The number of iterations of an epoch."""
        return num_iterations(self.num_samples, self._balancer.total, self._drop_last)

    @property
    def batch_size(self) -> int:
        """This worker's batch size of the moment."""
        return self._balancer.batch_size

    @property
    def common_settings(self) -> dict[str, Any]:
        """What must be the same on all workers."""
        return {
            LENGTH: self.num_samples,
            **self._common,
            "drop_last": self._drop_last,
            "seed": self._seed,
            "seed_samples": self._seed_samples,
            "counts": repr(self._counts),
        }

    def check(self) -> None:
        """Raise InvalidSetting where an epoch would have no iteration, or counts do not fit."""
        if self._counts is not None:
            self._counts.check(self.dataset)
        if len(self) == 0:
            raise InvalidSetting(
                f"an epoch must have at least one iteration, got {self.num_samples} samples for a "
                f"total of {self._balancer.total} with drop_last={self._drop_last}"
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and with it the order; without it, epochs count themselves.

        An epoch that a checkpoint was made in goes on where it was made.
        """
        self._settle()
        if epoch != self._epoch:
            self._epoch, self._position = epoch, 0

    @property
    def sampler(self) -> BalancedLoader:
        """What a stock loop calls `loader.sampler.set_epoch` of: the loader itself."""
        return self

    def __iter__(self) -> Iterator[Any]:
        self._settle()
        under_way = self.under_way = UnderWay(
            self._epoch, self._order.of(self._epoch), self._position, self._balancer.iteration
        )
        fetched = Fetched(self._loading, self._ahead) if self._loading is not None else None
        before = iteration = self._balancer.interrupted()
        try:
            for position in range(under_way.position, len(self)):
                iteration = self._balancer.begin()
                keys, sizes = self._deal(under_way, position, iteration.plan)
                batch = self._batch(keys, fetched)
                size = None if self._counts is None else self._counts.size_of(keys)
                self._balancer.has_batch(sizes, (under_way.epoch, position), size)
                # Before the batch is out: a checkpoint made in the loop's body comes after it.
                self._position = position + 1
                yield pin(batch) if self._pin_memory else batch
        finally:
            self._balancer.go_on(before, iteration)
        # Not after an evaluation, which a worker may well do alone.
        if under_way.has_trained(self._balancer):
            self._balancer.average_buffers()
        self._epoch, self._position, self.under_way = under_way.epoch + 1, 0, None

    def _settle(self) -> None:
        """Be done with an epoch that was left early.

        The next one follows; unless nothing was trained on, as when somebody looks at a batch.
        """
        if self.under_way is None:
            return
        if self.under_way.has_trained(self._balancer):
            self._epoch, self._position = self._epoch + 1, 0
        else:
            self._position = self.under_way.position
        self.under_way = None

    def state_dict(self) -> dict[str, Any]:
        """Return where in which epoch the loader is, for a checkpoint.

        With a sampler, the order of the epoch is part of it.
        """
        state: dict[str, Any] = {
            "epoch": self._epoch,
            "position": self._position,
            **self._kept,
        }
        sampled = self._order.sampled(self._epoch)
        if sampled is not None:
            state["order"] = torch.from_numpy(sampled)
        return state

    @property
    def _kept(self) -> dict[str, int]:
        total = self._balancer.total
        return {"seed": self._seed, "total": total, LENGTH: self.num_samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was made, also with another number of workers.

        What remains of the epoch is dealt out to whoever is there. Seed and total must be the same,
        and in mid-epoch the number of samples.
        """
        check_place(state, self._kept)
        self._epoch, self._position = state["epoch"], state["position"]
        self.under_way = None
        self._order.restore(self._epoch, state["order"].numpy() if "order" in state else None)

    def guess(self, under_way: UnderWay, position: int) -> list[Key] | None:
        """Return what a coming iteration needs by the newest plan; None after the last one."""
        if position >= len(self):
            return None
        return self._deal(under_way, position, self._balancer.newest_plan)[0]

    def _deal(self, under_way: UnderWay, position: int, plan: Plan) -> tuple[list[Key], Ints]:
        """Return this worker's samples of an iteration, and the sizes of all workers.

        A worker without samples gets as few as it can run, borrowed, at weight 0.
        """
        samples = slice_of(under_way.order, position, self._balancer.total)
        least = max(self._balancer.minimum, self._balancer.fewest)
        sizes = sizes_within(plan.sizes, len(samples), least)
        worker = self._balancer.worker
        if self._counts is None:
            mine = deal(samples, sizes, worker)
        else:
            mine, sizes = self._counts.deal(samples, sizes, least, worker)
        if len(mine) == 0:
            mine = borrow(samples, len(sizes), worker, self._balancer.fewest)
        return [(under_way.epoch, index) for index in mine.tolist()], sizes

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
    balancer: Balancing, dataset: Dataset[Any], settings: Mapping[str, Any]
) -> BalancedLoader:
    """Return the loader of a balancer; all workers must have given the same settings."""
    loader = BalancedLoader(balancer, dataset, **settings)
    require_agreement(loader.common_settings, balancer.meeting)
    loader.check()
    return loader


def check_loading(settings: Mapping[str, Any]) -> None:
    """Refuse those settings of a DataLoader that are ours to choose."""
    for name in ("batch_size", "batch_sampler"):
        if name in settings:
            raise InvalidSetting(
                f"{name} must be left out, as batch sizes are planned: give the balancer the total"
            )
    if not settings.get("in_order", True):
        raise InvalidSetting("in_order must be True: every worker's iterations have an order")
