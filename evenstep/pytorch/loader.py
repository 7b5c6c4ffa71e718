"""The loader: this worker's batches, each exactly as large as the plan of its iteration says.

Loading processes fetch ahead what the plan of today would need tomorrow. When the plan has changed
by then, the main process fetches the few samples that are missing and drops those that became
somebody else's: a new size takes effect in the next iteration, however deep the prefetching.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory as pin

from evenstep.core.arrays import Ints
from evenstep.core.dealing import deal, home_of, num_iterations, shuffled, sizes_within, slice_of
from evenstep.errors import InvalidSetting
from evenstep.pytorch.exchange import Share
from evenstep.pytorch.fetching import Key, Packing, Samples

if TYPE_CHECKING:
    from evenstep.pytorch.balancer import Balancer


class BalancedLoader:
    """Iterates over the batches of one worker; made by `Balancer.loader`."""

    def __init__(
        self,
        balancer: Balancer,
        dataset: Dataset[Any],
        *,
        shuffle: bool = True,
        sampler: Sequence[int] | None = None,
        drop_last: bool = False,
        seed: int = 0,
        seed_samples: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        num_workers: int = 0,
        **loading: Any,
    ) -> None:
        self._balancer = balancer
        self._dataset = dataset
        self._shuffle = shuffle
        self._sampler = sampler
        self._drop_last = drop_last
        self._seed = seed
        self._packing = Packing(collate_fn)
        self._pin_memory = pin_memory and torch.cuda.is_available()
        self._samples = Samples(dataset, seed if seed_samples else None)
        self._epoch = 0
        self._position = 0
        self.num_samples = self._count_samples()
        self._ahead = _Ahead(self)
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

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and with it the order; without it, epochs count themselves."""
        self._epoch = epoch
        self._position = 0

    def __iter__(self) -> Iterator[Any]:
        order = self._order()
        fetched = iter(self._loading) if self._loading is not None else None
        for position in range(self._position, len(self)):
            plan = self._balancer.begin()
            samples = slice_of(order, position, self._balancer.total)
            sizes = sizes_within(plan.sizes, len(samples), self._balancer.minimum)
            keys = self._keys(samples, sizes)
            batch = self._batch(keys, fetched)
            self._balancer.has_batch(Share(int(sizes[self._balancer.worker]), len(samples)))
            # Before the batch is out: a checkpoint made in the loop's body comes after it.
            self._position = position + 1
            yield pin(batch) if self._pin_memory else batch  # type: ignore[no-untyped-call]
        self._balancer.average_buffers()
        self._epoch += 1
        self._position = 0

    def state_dict(self) -> dict[str, Any]:
        """Return where in which epoch the loader is, for a checkpoint."""
        return {"epoch": self._epoch, "position": self._position, "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was made; the seed must be the same."""
        if state["seed"] != self._seed:
            raise InvalidSetting(
                f"the loader's seed must be that of the checkpoint, {state['seed']}, "
                f"got {self._seed}"
            )
        self._epoch, self._position = state["epoch"], state["position"]

    def ahead(self) -> Iterator[list[Key]]:
        """Yield the keys of the coming iterations by the plan at the time of asking."""
        order = self._order()
        for position in range(self._position, len(self)):
            samples = slice_of(order, position, self._balancer.total)
            sizes = sizes_within(self._balancer.plan.sizes, len(samples), self._balancer.minimum)
            yield self._keys(samples, sizes)

    def _keys(self, samples: Ints, sizes: Ints) -> list[Key]:
        """Return this worker's samples; one borrowed sample, at weight 0, where it has none."""
        worker = self._balancer.worker
        mine = deal(samples, sizes, worker)
        if len(mine) == 0:
            home = home_of(samples, len(sizes), worker)
            mine = (home if len(home) else samples)[: max(1, self._balancer.minimum)]
        return [(self._epoch, int(index)) for index in mine]

    def _batch(self, keys: list[Key], fetched: Iterator[Any] | None) -> Any:
        if fetched is None:
            return self._packing.collate(self._samples.__getitems__(keys))
        packed = next(fetched)
        guessed = self._ahead.guesses.popleft()
        if guessed == keys:
            return self._packing.take_all(packed)
        place = {key: i for i, key in enumerate(guessed)}
        missing = [key for key in keys if key not in place]
        extra = dict(zip(missing, self._samples.__getitems__(missing), strict=True))
        here = [key for key in keys if key in place]
        picked = self._packing.pick(packed, [place[key] for key in here])
        have = {**dict(zip(here, picked, strict=True)), **extra}
        return self._packing.collate([have[key] for key in keys])

    def _count_samples(self) -> int:
        if isinstance(self._dataset, IterableDataset):
            raise InvalidSetting(
                "the dataset must be map-style (with __getitem__ and __len__): a stream cannot be "
                f"dealt out sample by sample, got {type(self._dataset).__name__}"
            )
        source = self._dataset if self._sampler is None else self._sampler
        try:
            return len(source)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            raise InvalidSetting(
                f"the {'dataset' if self._sampler is None else 'sampler'} must have a length, "
                f"so that an epoch has an end, got {type(source).__name__} without one"
            ) from None

    def _order(self) -> Ints:
        """Return the order of the epoch, the same on all workers."""
        if self._sampler is not None:
            return self._sampled_order(self._sampler)
        if self._shuffle:
            return shuffled(self.num_samples, self._seed, self._epoch)
        return np.arange(self.num_samples)

    def _sampled_order(self, sampler: Sequence[int]) -> Ints:
        """Return the order that worker 0's sampler gives: others' may be random in another way."""
        if self._cached_order[0] != self._epoch:
            indices = torch.tensor([int(i) for i in sampler], dtype=torch.int64)
            dist.broadcast(indices, group_src=0, group=self._balancer.side_group)
            self._cached_order = (self._epoch, indices.numpy())
        return self._cached_order[1]

    _cached_order: tuple[int, Ints] = (-1, np.zeros(0, dtype=np.int64))


class _Ahead:
    """The batch sampler of the loading processes; remembers what it had them fetch."""

    def __init__(self, loader: BalancedLoader) -> None:
        self._loader = loader
        self.guesses: deque[list[Key]] = deque()

    def __iter__(self) -> Iterator[list[Key]]:
        self.guesses.clear()
        for keys in self._loader.ahead():
            self.guesses.append(keys)
            yield keys

    def __len__(self) -> int:
        return len(self._loader)
