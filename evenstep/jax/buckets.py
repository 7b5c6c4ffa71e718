"""Buckets: batches are padded to a few sizes, as JAX compiles a program for every shape."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np

from evenstep.core.coordinator import JobCoordinator
from evenstep.errors import InvalidSetting
from evenstep.training.loop_setup import check_coordinator

_FINENESS = 8
"""Buckets in an even share of the total: a worker meets a dozen sizes at most, and sizes are
accurate to about 6 % of that share."""


def choose_bucket(
    bucket: int | None, total: int, num_workers: int, coordinator: JobCoordinator | None
) -> int:
    """Return the bucket: the one given, the job's granularity, or a part of an even share."""
    check_coordinator(coordinator)
    if bucket is not None:
        return bucket
    if coordinator is None:
        return default_bucket(total, num_workers)
    if coordinator.settings.granularity == 1:
        fit = default_bucket(total, num_workers)
        warnings.warn(
            f"job {coordinator.job} plans any batch size, and JAX compiles for each new one; "
            f"evenstep.connect(..., granularity={fit}) plans fewer sizes",
            stacklevel=3,
        )
    return coordinator.settings.granularity


def default_bucket(total: int, num_workers: int) -> int:
    """Return the bucket for a total: a small part of an even share.

    >>> default_bucket(total=256, num_workers=2), default_bucket(total=20, num_workers=2)
    (16, 1)
    """
    return max(1, total // (_FINENESS * num_workers))


def padded_size(count: int, bucket: int) -> int:
    """Return the size that `count` samples are padded to: whole buckets.

    >>> padded_size(17, bucket=8), padded_size(16, bucket=8)
    (24, 16)
    """
    return -(-count // bucket) * bucket


def pad(batch: Any, count: int, size: int) -> Any:
    """Return a batch of `count` samples with its first one repeated up to `size`.

    A real sample, unlike zeros, cannot cause a division by zero that the data do not cause.

    >>> pad((np.array([5, 6]), np.array([[1], [2]])), count=2, size=4)[0]
    array([5, 6, 5, 5])
    """
    return jax.tree.map(lambda leaf: _padded(leaf, count, size), batch)


def _padded(leaf: Any, count: int, size: int) -> Any:
    array = np.asarray(leaf)
    if array.ndim == 0 or len(array) != count:
        raise InvalidSetting(
            f"arrays of a batch must have an entry for each of its samples ({count}), got shape "
            f"{array.shape}; pass other arguments by name"
        )
    if count == size:
        return array
    return np.concatenate((array, np.repeat(array[:1], size - count, axis=0)))
