"""`ema`: the exponential moving average of past speeds; with alpha 1 it is `memoryless`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import (
    UNLIMITED,
    Arrays,
    Bools,
    Floats,
    Ints,
    from_arrays,
    remap_rows,
    require,
    to_arrays,
)
from evenstep.errors import InvalidSetting, StateFileError


@dataclass(frozen=True, eq=False)
class _State:
    mean: Floats
    seen: Bools


def _fresh(num_workers: int) -> _State:
    return _State(np.ones(num_workers), np.zeros(num_workers, dtype=bool))


class Ema:
    """``mean += alpha (v - mean)``, from the first speed on; alpha is the weight of the newest one.

    >>> ema = Ema(1, alpha=0.5)
    >>> for speed in (4.0, 8.0):
    ...     ema.observe(np.array([speed]), np.ones(1), np.ones(1))
    >>> ema.predict(np.ones(1), np.ones(1))
    array([6.])
    """

    def __init__(self, num_workers: int, alpha: float = 0.2) -> None:
        if not 0 < alpha <= 1:
            raise InvalidSetting(f"alpha of ema must be in (0, 1], got {alpha}")
        self.alpha = alpha
        self._state = _fresh(num_workers)

    @property
    def num_workers(self) -> int:
        return len(self._state.mean)

    def predict(self, cpu: Floats, memory: Floats) -> Floats:
        return fill_unseen(self._state.mean, self._state.seen).copy()

    def observe(self, speeds: Floats, cpu: Floats, memory: Floats) -> None:
        old, new = self._state, np.isfinite(speeds)
        moved = np.where(old.seen, old.mean + self.alpha * (speeds - old.mean), speeds)
        self._state = _State(np.where(new, moved, old.mean), old.seen | new)

    def remap(self, keep: Ints) -> None:
        self._state = remap_rows(self._state, _fresh(len(keep)), keep)

    def state(self) -> Arrays:
        return to_arrays(self._state)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        saved = from_arrays(_fresh(self.num_workers), state)
        possible = (saved.mean > 0) & (saved.mean <= UNLIMITED)
        rule = "saved mean speed must be > 0 and at most 2^53"
        require(possible, rule, saved.mean, error=StateFileError)
        self._state = saved


def fill_unseen(speeds: Floats, seen: Bools) -> Floats:
    """Return the speeds with those of workers never seen replaced by the median of the seen.

    >>> fill_unseen(np.array([3.0, 0.0, 5.0]), np.array([True, False, True]))
    array([3., 4., 5.])
    """
    if seen.all():
        return speeds
    typical = float(np.median(speeds[seen])) if seen.any() else 1.0
    return np.where(seen, speeds, typical)
