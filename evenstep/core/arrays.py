"""The array types of the core, and checks of values from outside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenstep.errors import EvenstepError, InvalidSetting

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def as_floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)


def as_ints(values: ArrayLike) -> Ints:
    return np.asarray(values, dtype=np.int64)


def frozen(values: ArrayLike) -> Ints:
    """Return a read-only copy of integers, safe to share."""
    copy: Ints = np.array(values, dtype=np.int64)
    copy.setflags(write=False)
    return copy


def require(
    ok: Bools,
    rule: str,
    values: ArrayLike,
    workers: Sequence[str] | None = None,
    error: type[EvenstepError] = InvalidSetting,
) -> None:
    """Raise `error` for the first worker whose value breaks the rule.

    >>> require(np.array([True, False]), "batch size must be >= 0", [4, -5])
    Traceback (most recent call last):
    evenstep.errors.InvalidSetting: batch size must be >= 0, got -5 for worker 1
    """
    if ok.all():
        return
    i = int(np.argmin(ok))
    worker = str(i) if workers is None else workers[i]
    got = np.broadcast_to(np.asarray(values), ok.shape)[i]
    raise error(f"{rule}, got {got} for worker {worker}")


def median(values: Floats, axis: int = 0) -> Floats:
    """Return the median of the known values along an axis, NaN where there are none."""
    # After sorting, NaN comes last; numpy's nanmedian takes many times as long.
    ordered = np.sort(values, axis=axis)
    last = np.expand_dims(np.maximum((~np.isnan(ordered)).sum(axis=axis) - 1, 0), axis)
    lower, upper = (np.take_along_axis(ordered, at, axis) for at in (last // 2, (last + 1) // 2))
    middle: Floats = np.squeeze(lower + (upper - lower) / 2, axis=axis)
    return middle


def mean(values: Floats, axis: int = 0) -> Floats:
    """Return the mean of the known values along an axis, NaN where there are none."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    total = np.sum(values, axis=axis, where=known)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
