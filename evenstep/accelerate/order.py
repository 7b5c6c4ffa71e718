"""The order of samples in Accelerate's own loader, of all workers together.

Accelerate deals the batches of a DataLoader out to the workers in turn, or splits each of them. So
iteration k of all workers is the k-th slice of the order that the sampler gives to the whole data
set. At the end, `even_batches` fills the last iteration up with samples from the beginning;
`dispatch_batches` does so only up to a multiple of the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler

from evenstep.core import as_ints
from evenstep.core.stock_order import padded, padded_length


class StockOrder:
    """The samples of one epoch after the other, with those that Accelerate repeats at the end.

    The number of samples of an epoch is a multiple of `multiple`.
    """

    def __init__(self, batches: BatchSampler, multiple: int) -> None:
        self._batches = batches
        self._multiple = multiple
        self._drawn: list[int] = []
        self._if_left: torch.Tensor | None = None
        """The state of the sampler's generator if the epoch is left early."""

    @property
    def num_samples(self) -> int:
        """The number of samples of an epoch, without those that are repeated."""
        sampler: Any = self._batches.sampler
        return len(sampler)

    def __len__(self) -> int:
        return padded_length(self.num_samples, self._multiple, pad=True)

    def __iter__(self) -> Iterator[int]:
        return iter(self._drawn)

    def draw(self) -> None:
        """Draw the order of the next epoch from the sampler."""
        if self.generator is not None and self._if_left is not None:
            self.generator.set_state(self._if_left)
        given = iter(self._batches.sampler)
        order = list(islice(given, self.num_samples))
        # A RandomSampler draws once more when it is exhausted, but not if an epoch is left early.
        self._if_left = None if self.generator is None else self.generator.get_state()
        order += given
        padded_order = padded(as_ints(order), padded_length(len(order), self._multiple, pad=True))
        self._drawn = padded_order.tolist()

    def end(self) -> None:
        """Note that the epoch was not left early."""
        self._if_left = None

    @property
    def generator(self) -> torch.Generator | None:
        """The generator that the sampler draws from, if it has one of its own."""
        return getattr(self._batches.sampler, "generator", None)
