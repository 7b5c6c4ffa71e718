"""The order of an epoch: shuffled by a seed, given by a sampler, or that of the data set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch.utils.data import Dataset, DistributedSampler, IterableDataset

from evenstep.core import Ints, as_ints
from evenstep.core.dealing import shuffled
from evenstep.errors import InvalidSetting
from evenstep.pytorch.collective import ProcessGroupCollective


class Order:
    """Provides the order of each epoch, which is the same on all workers."""

    def __init__(
        self,
        dataset: Dataset[Any],
        sampler: Iterable[int] | None,
        shuffle: bool,
        seed: int,
        collective: ProcessGroupCollective,
    ) -> None:
        self._sampler = sampler
        self._shuffle = shuffle
        self._seed = seed
        self._collective = collective
        self._sampled: tuple[int, Ints] | None = None
        self.num_samples = count_samples(dataset, sampler)

    def of(self, epoch: int) -> Ints:
        """Return the indices of the samples of an epoch in order; all workers must call it."""
        if self._sampler is not None:
            return self._of_sampler(self._sampler, epoch)
        if self._shuffle:
            return shuffled(self.num_samples, self._seed, epoch)
        return np.arange(self.num_samples)

    def sampled(self, epoch: int) -> Ints | None:
        """Return the order that a sampler gave for this epoch, for a checkpoint."""
        if self._sampled is None or self._sampled[0] != epoch:
            return None
        return self._sampled[1]

    def restore(self, epoch: int, sampled: Ints | None) -> None:
        """Restore the order that a sampler gave for this epoch."""
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
            "the dataset must be map-style (with __getitem__ and __len__): a stream cannot be "
            f"dealt out sample by sample, got {type(dataset).__name__}"
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
