"""Partitioning a data set: mixed, or skewed by class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenstep.core import Ints
from evenstep.core.dealing import numpy_order
from evenstep.errors import InvalidSetting


def deal_mixed(num_samples: int, num_partitions: int, seed: int = 0) -> list[Ints]:
    """Deal samples at random, the same number to each partition.

    >>> [samples.tolist() for samples in deal_mixed(7, 3)]
    [[2, 3, 4], [5, 6], [0, 1]]
    """
    _check_count(num_samples, num_partitions)
    order = numpy_order(num_samples, seed, epoch=0)
    return [np.sort(samples) for samples in np.array_split(order, num_partitions)]


def deal_by_class(labels: Ints, num_partitions: int) -> list[Ints]:
    """Deal whole classes, the same number to each partition; with fewer classes, parts of them.

    The paper's verification deals the ten classes of CIFAR-10 to five workers.

    >>> [samples.tolist() for samples in deal_by_class(np.array([0, 1, 2, 3, 0, 1]), 2)]
    [[0, 1, 4, 5], [2, 3]]
    >>> [samples.tolist() for samples in deal_by_class(np.array([0, 1, 0, 1, 0]), 3)]
    [[0, 2], [1, 4], [3]]
    """
    _check_count(len(labels), num_partitions)
    classes = np.unique(labels)
    if len(classes) < num_partitions:
        pieces = np.array_split(np.argsort(labels, kind="stable"), num_partitions)
        return [np.sort(samples) for samples in pieces]
    groups = np.array_split(classes, num_partitions)
    return [np.flatnonzero(np.isin(labels, group)) for group in groups]


def check_dealt(dealt: Sequence[Ints], num_samples: int) -> None:
    """Raise InvalidSetting unless every sample is dealt once, and every partition has some."""
    counts = [len(samples) for samples in dealt]
    if not counts or 0 in counts:
        raise InvalidSetting(f"every partition must have samples, got {counts}")
    every = np.sort(np.concatenate(list(dealt)))
    if not np.array_equal(every, np.arange(num_samples)):
        raise InvalidSetting(f"each of {num_samples} samples must be dealt once, got {counts}")


def _check_count(num_samples: int, num_partitions: int) -> None:
    if not 1 <= num_partitions <= num_samples:
        raise InvalidSetting(f"partitions must be 1 to {num_samples}, got {num_partitions}")
