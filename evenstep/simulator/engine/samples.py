"""Samples: assigns samples to the workers of an engine in each iteration.

Synchronous schemes deal the k-th slice of one endless order, so that every plan trains on the same
samples. Asynchronous workers each have their own stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from evenstep.core import Ints
from evenstep.core.dealing import deal, home_of, numpy_order
from evenstep.errors import InvalidSetting


class Samples(Protocol):
    """Returns the samples of a worker; called once for each gradient."""

    def deal(self, worker: int, iteration: int, sizes: Ints) -> Ints: ...


class SharedOrder:
    """Iteration k has the samples from kX to (k+1)X of the concatenated orders of all epochs.

    >>> order = SharedOrder(num_samples=6, seed=0)
    >>> [order.deal(worker, 0, np.array([1, 3])).tolist() for worker in (0, 1)]
    [[3], [5, 4, 2]]
    >>> [order.deal(worker, 0, np.array([2, 2])).tolist() for worker in (0, 1)]
    [[3, 2], [5, 4]]
    """

    def __init__(self, num_samples: int, seed: int) -> None:
        self._num_samples = num_samples
        self._seed = seed
        self._slice: tuple[int, int, Ints] | None = None
        """Iteration, total and samples of the last slice."""

    def deal(self, worker: int, iteration: int, sizes: Ints) -> Ints:
        return deal(self._slice_of(iteration, int(sizes.sum())), sizes, worker)

    def _slice_of(self, iteration: int, total: int) -> Ints:
        if self._slice is None or self._slice[:2] != (iteration, total):
            start, n = iteration * total, self._num_samples
            epochs = range(start // n, (start + total - 1) // n + 1)
            orders = np.concatenate([numpy_order(n, self._seed, epoch) for epoch in epochs])
            first = start - epochs[0] * n
            self._slice = (iteration, total, orders[first : first + total])
        return self._slice[2]


class WorkerStreams:
    """Each worker traverses its own samples, pass after pass, x_i at a time."""

    def __init__(
        self, num_workers: int, one_pass: Callable[[int, int], Ints], first_pass: int = 0
    ) -> None:
        """`one_pass` returns all samples of a worker's pass, given both numbers."""
        self._one_pass = one_pass
        self._passes = [first_pass] * num_workers
        self._left: list[Ints] = [np.empty(0, dtype=np.int64)] * num_workers

    @classmethod
    def of_shares(cls, num_samples: int, num_workers: int, seed: int) -> WorkerStreams:
        """Give each worker an even share of each epoch's order.

        Workers in the same epoch process different samples; fast workers are epochs ahead.
        """
        if num_samples < num_workers:
            raise InvalidSetting(
                f"every worker must have a sample, got {num_samples} for {num_workers} workers"
            )

        def share(worker: int, epoch: int) -> Ints:
            return home_of(numpy_order(num_samples, seed, epoch), num_workers, worker)

        return cls(num_workers, share)

    @classmethod
    def of_partitions(
        cls, partitions: Sequence[Ints], seed: int, first_pass: int = 0
    ) -> WorkerStreams:
        """Give each worker its partition of the data, shuffled in each pass.

        With `first_pass`, streams that replace others continue with unused orders.
        """
        for worker, partition in enumerate(partitions):
            if len(partition) == 0:
                raise InvalidSetting(f"partition of worker {worker} must not be empty, got none")

        def shuffled_partition(worker: int, number: int) -> Ints:
            partition = partitions[worker]
            return partition[numpy_order(len(partition), seed, number)]

        return cls(len(partitions), shuffled_partition, first_pass)

    @property
    def num_passes(self) -> int:
        """The number of the first pass that no worker has started."""
        return max(self._passes)

    def deal(self, worker: int, iteration: int, sizes: Ints) -> Ints:
        """Return the next samples of a worker's stream."""
        wanted = int(sizes[worker])
        parts = [self._left[worker]]
        while sum(map(len, parts)) < wanted:
            parts.append(self._one_pass(worker, self._passes[worker]))
            self._passes[worker] += 1
        ahead = np.concatenate(parts)
        self._left[worker] = ahead[wanted:]
        return ahead[:wanted]
