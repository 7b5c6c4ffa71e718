"""Batch sizes that a user gives because a file of times does not say them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenstep.core.arrays import Ints
from evenstep.errors import InvalidSetting


def given_sizes(batch_sizes: Sequence[int] | None, num_workers: int, what: str) -> Ints:
    """Return one size per worker; one number holds for all of them.

    >>> given_sizes([32], 3, "a trace")
    array([32, 32, 32])
    """
    if batch_sizes is None:
        raise InvalidSetting(f"{what} does not say batch sizes: give them (--batch-size 32)")
    if len(batch_sizes) not in (1, num_workers) or min(batch_sizes) < 1:
        raise InvalidSetting(
            f"batch sizes must be one >= 1 for all or for each of {num_workers} workers, "
            f"got {list(batch_sizes)}"
        )
    return np.array(np.broadcast_to(np.asarray(batch_sizes, np.int64), num_workers))
