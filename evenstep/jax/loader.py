"""The loader of this worker's batches, in the sizes planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from evenstep.core import Ints
from evenstep.errors import InvalidSetting
from evenstep.jax.buckets import padded_size
from evenstep.jax.pending_batch import PendingBatch
from evenstep.training.epochs import Epochs, ThroughEpochs
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
