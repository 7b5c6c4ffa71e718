"""The fewest samples to move, with knowledge of the future, to keep traversal counts together.

A single migration to partitions that fit what each worker consumes in the whole run moves the
fewest samples, and makes counts equal at its end; on the way they may drift far apart. Within a
bound for the gap it takes several: here a run is cut into stretches, each with partitions that fit
what is consumed in it, so that counts are equal at its end and at most the bound apart on the way.
Of all ways to cut it, at multiples of some iterations, the one that moves the fewest is found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep.core import Floats, Ints


class Way(NamedTuple):
    """A way up to some iteration."""

    moved: float
    sizes: Floats
    """The partition sizes at its end."""


def widest_gap(sizes: Floats | Ints, batch_sizes: Ints) -> float:
    """Return how far counts get apart when partitions stay as they are.

    >>> widest_gap(np.array([10, 10]), np.array([[2, 4], [2, 4], [6, 2]]))
    0.4
    """
    return float(np.ptp(np.cumsum(batch_sizes, axis=0) / sizes, axis=1).max())


def fewest_within(bound: float, before: Ints, batch_sizes: Ints, every: int) -> float:
    """Return the fewest samples to move so that counts are never further apart than the bound.

    `batch_sizes` has a row per iteration; stretches begin and end at multiples of `every`.

    >>> sizes = np.repeat([[2, 6], [6, 2]], 20, axis=0)
    >>> [fewest_within(bound, np.array([20, 20]), sizes, every=10) for bound in (100, 2)]
    [0.0, 10.0]
    """
    last = len(batch_sizes)
    marks = [*range(0, last, every), last]
    ways: dict[int, list[Way]] = {mark: [] for mark in marks}
    for end in marks[1:]:
        if widest_gap(before, batch_sizes[:end]) <= bound:
            ways[end].append(Way(0.0, before.astype(np.float64)))
    ways[0].append(Way(0.0, before.astype(np.float64)))
    for begin in marks[:-1]:
        if not ways[begin]:
            continue
        moved = np.array([way.moved for way in ways[begin]])
        sizes = np.array([way.sizes for way in ways[begin]])
        for end in (mark for mark in marks if mark > begin):
            stretch = batch_sizes[begin:end]
            fitting = _fitting(stretch, int(before.sum()))
            if widest_gap(fitting, stretch) <= bound:
                least = moved + np.maximum(fitting - sizes, 0).sum(axis=1)
                ways[end].append(Way(float(least.min()), fitting))
    return min((way.moved for way in ways[last]), default=np.inf)


def _fitting(stretch: Ints, num_samples: int) -> Floats:
    """Return the partition sizes, not rounded, with which counts are equal after a stretch."""
    consumed = np.maximum(stretch.sum(axis=0), 1e-9)
    return np.asarray(consumed * (num_samples / consumed.sum()))
