"""The loader of this worker's batches, in the sizes planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from evenstep.core import Ints
from evenstep.errors import InvalidSetting, OutOfTurn
from evenstep.jax.buckets import padded_size
from evenstep.training.epochs import Dealt, Epochs, ThroughEpochs
from evenstep.training.loop import Loop, batches

Fetch = Callable[[Ints], Any]
"""Returns the samples of these indices: a tree of arrays with an entry for each."""


class BalancedLoader(ThroughEpochs):
    """Yields batches of exactly as many samples as planned; each iteration over it is an epoch.

    Batches are numpy arrays: JAX would compile its operations for every new size.
    """

    def __init__(
        self, loop: Loop, pending: PendingBatch, bucket: int, epochs: Epochs, fetch: Fetch
    ) -> None:
        self._loop = loop
        self._pending = pending
        self._bucket = bucket
        self.epochs = epochs
        self._fetch = fetch
        loop.agree(epochs.common_settings)

    def __iter__(self) -> Iterator[Any]:
        # A padded batch takes as long as a full one, so its padded size is reported.
        for dealt in batches(
            self._loop, self.epochs, lambda count: padded_size(count, self._bucket)
        ):
            self._pending.give(dealt)
            yield self._fetch(dealt.samples)


def fetch_from(data: Any) -> tuple[Fetch, int]:
    """Return a function that fetches samples from arrays, and the number of samples.

    >>> fetch, num_samples = fetch_from((np.array([4, 5, 6]), np.array([0, 1, 0])))
    >>> fetch(np.array([2, 0])), num_samples
    ((array([6, 4]), array([0, 0])), 3)
    """
    arrays = jax.tree.map(np.asarray, data)
    shapes = [leaf.shape for leaf in jax.tree.leaves(arrays)]
    lengths = {shape[:1] for shape in shapes}
    if len(lengths) != 1 or lengths == {()}:
        raise InvalidSetting(
            "data must be arrays with an entry per sample, as many in each, got shapes "
            f"{', '.join(map(str, shapes)) or 'of none'}"
        )
    return lambda indices: jax.tree.map(lambda leaf: leaf[indices], arrays), shapes[0][0]


class PendingBatch:
    """Holds the batch whose gradient is due.

    >>> PendingBatch().take()
    Traceback (most recent call last):
    evenstep.errors.OutOfTurn: value_and_grad must be called once for each batch of
    balancer.loader, got a call without a new batch
    """

    def __init__(self) -> None:
        self._dealt: Dealt | None = None

    def give(self, dealt: Dealt) -> None:
        """Set the batch that a loader has just yielded."""
        self._dealt = dealt

    def take(self) -> Dealt:
        """Return the batch whose gradient is due, once."""
        dealt, self._dealt = self._dealt, None
        if dealt is None:
            raise OutOfTurn(
                "value_and_grad must be called once for each batch of balancer.loader, got a call "
                "without a new batch"
            )
        return dealt
