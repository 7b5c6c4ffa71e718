"""`median`: the median of the last few speeds, insensitive to single spikes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import (
    Arrays,
    Floats,
    Ints,
    from_arrays,
    remap_rows,
    require,
    require_whole,
    to_arrays,
)
from evenstep.errors import StateFileError
from evenstep.predictors.ema import fill_unseen

MOST_LOOK_BACK = 100
"""Speeds that a median is of."""


@dataclass(frozen=True, eq=False)
class _State:
    past: Floats
    """The last speeds of each worker, newest last, NaN before the first ones."""


class Median:
    """The median of the last `look_back` speeds.

    >>> median = Median(1, look_back=3)
    >>> for speed in (4.0, 40.0, 5.0):
    ...     median.observe(np.array([speed]), np.ones(1), np.ones(1))
    >>> median.predict(np.ones(1), np.ones(1))
    array([5.])
    """

    def __init__(self, num_workers: int, look_back: int = 5) -> None:
        require_whole("look_back of median", look_back, most=MOST_LOOK_BACK)
        self.look_back = look_back
        self._state = self._fresh(num_workers)

    def _fresh(self, num_workers: int) -> _State:
        return _State(np.full((num_workers, self.look_back), np.nan))

    @property
    def num_workers(self) -> int:
        return len(self._state.past)

    def predict(self, cpu: Floats, memory: Floats) -> Floats:
        past = self._state.past
        count = np.isfinite(past).sum(axis=1)
        # NaNs sort last, so the middle of the first `count` values is the median.
        ordered = np.sort(past, axis=1)
        rows = np.arange(len(past))
        low = ordered[rows, np.maximum(count - 1, 0) // 2]
        high = ordered[rows, np.minimum(count // 2, self.look_back - 1)]
        return fill_unseen((low + high) / 2, count > 0)

    def observe(self, speeds: Floats, cpu: Floats, memory: Floats) -> None:
        past = self._state.past
        shifted = np.column_stack((past[:, 1:], speeds))
        self._state = _State(np.where(np.isfinite(speeds)[:, None], shifted, past))

    def remap(self, keep: Ints) -> None:
        self._state = remap_rows(self._state, self._fresh(len(keep)), keep)

    def state(self) -> Arrays:
        return to_arrays(self._state)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        saved = from_arrays(self._fresh(self.num_workers), state)
        least = np.fmin.reduce(saved.past, axis=1)
        require(~(least <= 0), "saved speeds must be > 0", least, error=StateFileError)
        self._state = saved
