"""Fetching samples: by key, seeded if wanted, and in a form that can be taken apart again."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

Key = tuple[int, int]
"""(epoch, index of the sample)."""


class Samples(Dataset[Any]):
    """A map-style data set asked by key; with a seed, each sample has randomness of its own.

    Random augmentation then depends on (seed, epoch, sample) and not on who processes the sample
    with whom.
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
    """Seed Python's, numpy's and torch's randomness, and put it back afterwards."""
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
    """How fetched samples come from a loading process, so that single ones can be picked.

    With the default collation the process collates, and a sample is a slice of the result: what is
    used as it came costs nothing more than with a stock loader. Otherwise samples come one by one
    and are collated here.
    """

    def __init__(self, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self.collate = collate_fn or default_collate
        self._packs = self.collate is default_collate

    def pack(self, samples: list[Any]) -> Any:
        """Prepare fetched samples for the way; runs in the loading process."""
        return self.collate(samples) if self._packs and samples else samples

    def take_all(self, packed: Any) -> Any:
        """Return the batch of all samples as they came."""
        return packed if self._packs else self.collate(packed)

    def pick(self, packed: Any, count: int) -> list[Any]:
        """Return the samples, so many, one by one."""
        return _samples_of(packed, count) if self._packs else list(packed)


def _samples_of(batch: Any, count: int) -> list[Any]:
    """Take a batch apart that the default collation made.

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
