"""Digests of samples: they tell partitions apart, and their sum stays while samples move."""

from __future__ import annotations

import numpy as np

from evenstep.core.arrays import Ints


def digest_of(samples: Ints) -> int:
    """Return a digest of sample numbers, in whatever order; digests of parts add up, modulo 2^64.

    >>> digest_of(np.array([3, 5])) == digest_of(np.array([5, 3])) != digest_of(np.array([4, 4]))
    True
    >>> parts = np.array([digest_of(np.arange(7)), digest_of(np.arange(7, 12))])
    >>> int(parts.sum()) == digest_of(np.arange(12))
    True
    """
    # The mixing function of SplitMix64.
    mixed = samples.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((mixed ^ (mixed >> np.uint64(31))).sum().astype(np.int64))
