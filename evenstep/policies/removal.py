"""Advice to remove a worker without which the job would be faster."""

from __future__ import annotations

import numpy as np

from evenstep.core import Advice, Floats, Ints, Limits, makespan, split_affine
from evenstep.errors import InfeasibleLimits

WORTHWHILE = 0.01
"""Removing a worker must shorten the iteration by at least this share."""


def advise_removal(
    total: int, offsets: Floats, slopes: Floats, sizes: Ints, limits: Limits
) -> tuple[Advice, ...]:
    """Advise to remove a worker if the others would finish earlier without it.

    Only the worker that takes longest for its smallest size is a candidate: without any other
    worker, this one would still take as long.

    >>> advise_removal(8, np.array([0.0, 0.0, 9.0]), np.ones(3), np.array([4, 3, 1]), Limits.of(3))
    (Advice(worker=2, predicted_time=4.0, kind='remove'),)
    """
    smallest, _ = limits.bounds(total)
    least = np.maximum(smallest, limits.granularity)
    times = np.where(sizes > 0, offsets + slopes * least, 0.0)
    worker = int(np.argmax(times))
    others = np.arange(len(sizes)) != worker
    try:
        without = split_affine(
            total, offsets[others], slopes[others], limits.select(np.flatnonzero(others))
        )
    except InfeasibleLimits:
        return ()
    time = makespan(without, offsets[others], slopes[others])
    if time >= (1 - WORTHWHILE) * times[worker]:
        return ()
    return (Advice(worker, time),)
