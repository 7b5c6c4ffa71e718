"""Samples: the order that a sampler gives them, and fetching them by key.

Fetched samples can be seeded, and are in a form that can be split into single ones again.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, DistributedSampler, IterableDataset, default_collate

from evenstep.core import Ints, as_array, as_ints
from evenstep.errors import InvalidSetting, StateFileError
from evenstep.pytorch.collective import ProcessGroupCollective

Key = tuple[int, int]
"""(epoch, index of the sample)."""


class Samples(Dataset[Any]):
    """A map-style data set that is read by key; with a seed, each sample is seeded separately.

    Random augmentation then depends on (seed, epoch, sample), and not on the worker or the batch.
    """

    def __init__(self, dataset: Dataset[Any], seed: int | None) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitems__(self, keys: Sequence[Key]) -> list[Any]:
        if self._seed is None:
            return _get_all(self._dataset, [index for _, index in keys])
        return [self._seeded(epoch, index) for epoch, index in keys]

    def __getitem__(self, key: Key) -> Any:
        return self.__getitems__([key])[0]

    def _seeded(self, epoch: int, index: int) -> Any:
        with seeded_randomness(zlib.crc32(f"{self._seed},{epoch},{index}".encode())):
            return self._dataset[index]


def _get_all(dataset: Any, indices: list[int]) -> list[Any]:
    if hasattr(dataset, "__getitems__"):
        samples: list[Any] = dataset.__getitems__(indices)
        return samples
    return [dataset[index] for index in indices]


@contextmanager
def seeded_randomness(seed: int) -> Iterator[None]:
    """Seed the random states of Python, numpy and torch, and restore them afterwards."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


class Packing:
    """Packs fetched samples in a loading process, so that single ones can be picked.

    With the default collation the loading process collates, and a sample is a slice of the result;
    a whole batch then costs no more than with a stock loader. With a custom collation, samples come
    one by one and are collated in the main process.
    """

    def __init__(self, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self.collate = collate_fn or default_collate
        self._packs = self.collate is default_collate

    def pack(self, samples: list[Any]) -> Any:
        """Prepare fetched samples for the transfer; runs in the loading process."""
        return self.collate(samples) if self._packs and samples else samples

    def take_all(self, packed: Any) -> Any:
        """Return all samples as a batch."""
        return packed if self._packs else self.collate(packed)

    def pick(self, packed: Any, count: int) -> list[Any]:
        """Return the samples one by one; `count` is their number."""
        return _samples_of(packed, count) if self._packs else list(packed)


def _samples_of(batch: Any, count: int) -> list[Any]:
    """Split a batch that the default collation made into samples.

    >>> _samples_of({"x": torch.arange(2), "name": ["a", "b"]}, 2)
    [{'x': tensor(0), 'name': 'a'}, {'x': tensor(1), 'name': 'b'}]
    """
    if isinstance(batch, Mapping):
        columns = [_samples_of(column, count) for column in batch.values()]
        return [{name: part[i] for name, part in zip(batch, columns, strict=True)}
                for i in range(count)]  # fmt: skip
    if isinstance(batch, (list, tuple)) and not (batch and isinstance(batch[0], (str, bytes))):
        columns = [_samples_of(column, count) for column in batch]
        make = type(batch)._make if hasattr(batch, "_make") else list
        return [make([part[i] for part in columns]) for i in range(count)]
    return list(batch)


class SampledOrder:
    """Provides the order that the sampler of worker 0 gives to each epoch, if there is one."""

    def __init__(
        self,
        dataset: Dataset[Any],
        sampler: Iterable[int] | None,
        collective: ProcessGroupCollective,
    ) -> None:
        self._sampler = sampler
        self._collective = collective
        self._sampled: tuple[int, Ints] | None = None
        self.num_samples = count_samples(dataset, sampler)
        self._dataset: Any = dataset

    def of(self, epoch: int) -> Ints | None:
        """Return the order of an epoch, or None without a sampler; all workers must call it."""
        return None if self._sampler is None else self._of_sampler(self._sampler, epoch)

    def known(self, epoch: int) -> Ints | None:
        """Return the order of an epoch if the sampler has given it, for a checkpoint."""
        if self._sampled is None or self._sampled[0] != epoch:
            return None
        return self._sampled[1]

    def check(self, saved: object, in_mid_epoch: bool) -> Ints | None:
        """Return the order in a checkpoint, or None without one; raise an error if it cannot fit.

        In mid-epoch, the samples that are left are known from the order alone.
        """
        if self._sampler is None or saved is None:
            if in_mid_epoch and (self._sampler is not None or saved is not None):
                has, got = ("with", "without") if self._sampler is None else ("without", "with")
                raise InvalidSetting(
                    f"a loader must order its samples as that of the checkpoint, {has} a sampler "
                    f"in mid-epoch, got one {got} a sampler"
                )
            return None
        order = as_array(saved)
        if order is None or order.dtype.kind != "i" or order.shape != (self.num_samples,):
            raise StateFileError(
                f"the order of a saved loader must be {self.num_samples} whole numbers, got "
                f"{type(saved).__name__} of shape {getattr(order, 'shape', 'unknown')}"
            )
        try:
            last = len(self._dataset) - 1
        except (TypeError, NotImplementedError):
            last = int(order.max())
        if np.any(order < 0) or np.any(order > last):
            raise StateFileError(
                f"the order of a saved loader must be of samples from 0 to {last}, got "
                f"{order.min()} to {order.max()}"
            )
        return as_ints(order)

    def restore(self, epoch: int, sampled: Ints | None) -> None:
        """Restore the order that the sampler gave to an epoch."""
        self._sampled = None if sampled is None else (epoch, sampled)

    def _of_sampler(self, sampler: Iterable[int], epoch: int) -> Ints:
        """Return the order of worker 0's sampler, as samplers may be random."""
        if self._sampled is None or self._sampled[0] != epoch:
            indices = as_ints(np.full(self.num_samples, -1))
            given = [int(i) for i in sampler] if self._collective.worker == 0 else []
            if len(given) == self.num_samples:
                indices = as_ints(given)
            indices = self._collective.of_first(indices)
            if (indices < 0).any():
                raise InvalidSetting(
                    f"the sampler must give as many samples as its length says, "
                    f"{self.num_samples}, got {len(given) or 'others'} on worker 0"
                )
            self._sampled = (epoch, indices)
        return self._sampled[1]


def count_samples(dataset: Any, sampler: Any = None) -> int:
    """Return the number of samples of an epoch; raise InvalidSetting if it is unknown."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise InvalidSetting(
            "the dataset must be map-style (with __getitem__ and __len__), or a stream where "
            "samples are used in its own order, got "
            f"{type(dataset).__name__}"
        )
    if isinstance(sampler, DistributedSampler):
        raise InvalidSetting(
            "the sampler must order the whole data set, which is dealt out to the workers "
            "afterwards, got a DistributedSampler: leave it out"
        )
    source = dataset if sampler is None else sampler
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        raise InvalidSetting(
            f"the {'dataset' if sampler is None else 'sampler'} must have a length, "
            f"so that an epoch has an end, got {type(source).__name__} without one"
        ) from None
