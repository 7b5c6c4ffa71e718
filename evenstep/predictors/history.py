"""The history of each worker's observations, bounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenstep.core.arrays import Floats, Ints, as_floats
from evenstep.core.rows import remap_rows
from evenstep.errors import InvalidSetting

SPEED, CPU, MEMORY = range(3)
"""The series of a history, in logarithms: what slows a worker down does so by a factor."""
_LEAST_USAGE = 0.01


def log_usage(cpu: Floats, memory: Floats) -> tuple[Floats, Floats]:
    """Return log c and log m, finite also where nothing is left."""
    return np.log(np.maximum(cpu, _LEAST_USAGE)), np.log(np.maximum(memory, _LEAST_USAGE))


@dataclass(frozen=True, eq=False)
class History:
    """The last observations of each worker: a ring, written in place.

    An iteration in which a worker has no observation leaves no gap: the value before is the last
    one observed.
    """

    past: NDArray[np.float32]
    """(worker, place, series), NaN where nothing has been observed yet."""
    count: Ints
    """Observations so far; the next one goes to place ``count % size``."""

    @classmethod
    def of(cls, num_workers: int, size: int) -> History:
        """Make the empty history of `num_workers` workers that holds `size` observations each."""
        if size < 1:
            raise InvalidSetting(f"history must hold >= 1 observations, got {size}")
        past = np.full((num_workers, size, 3), np.nan, dtype=np.float32)
        return cls(past, np.zeros(num_workers, dtype=np.int64))

    @property
    def size(self) -> int:
        return int(self.past.shape[1])

    def remapped(self, keep: Ints) -> History:
        """Return the history for other members; see `remap_rows`."""
        return remap_rows(self, History.of(len(keep), self.size), keep)

    def add(self, speeds: Floats, cpu: Floats, memory: Floats) -> None:
        """Add the speeds of an iteration with the usage at its start; NaN says there is none."""
        new = np.flatnonzero(np.isfinite(speeds))
        log_cpu, log_memory = log_usage(cpu[new], memory[new])
        place = self.count[new] % self.size
        self.past[new, place] = np.column_stack((np.log(speeds[new]), log_cpu, log_memory))
        self.count[new] += 1

    def latest(self, num: int) -> Floats:
        """Return a copy of each worker's last `num` observations, oldest first."""
        places = (self.count[:, None] + np.arange(-num, 0)) % self.size
        rows = np.arange(len(self.count))[:, None]
        return as_floats(self.past[rows, places])
