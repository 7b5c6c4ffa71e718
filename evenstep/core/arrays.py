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
