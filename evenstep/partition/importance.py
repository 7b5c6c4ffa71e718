"""Importance weights: for workers whose samples cannot move, however often each is used.

A worker's mean gradient estimates that of its partition, whatever its batch size. Weighted by
``n_i / N``, samples held over samples of all, the sum estimates the gradient of all samples.
"""

from __future__ import annotations

import numpy as np

from evenstep.core.arrays import Ints


def counted_samples(partition_sizes: Ints, batch_sizes: Ints) -> Ints:
    """Return how many samples the gradient of each worker counts for in the mean.

    Who processes nothing has no gradient: the others then stand for all.

    >>> counted_samples(np.array([100, 300]), np.array([48, 16]))
    array([100, 300])
    >>> counted_samples(np.array([100, 300]), np.array([64, 0]))
    array([100,   0])
    """
    return np.where(batch_sizes > 0, partition_sizes, 0)
