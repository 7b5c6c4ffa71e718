"""The bench: workers without samples, and when to see whether they are fast again.

A worker of size 0 has no times to report, so that it is tried again with one granule after some
patience, which doubles each time in vain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.core.arrays import Bools, Floats, Ints

_MOST_DOUBLINGS = 6


@dataclass(frozen=True, eq=False)
class Bench:
    """Who sits on the bench and for how long, one entry per worker."""

    idle: Ints
    """For how many iterations the worker has had no samples."""
    benchings: Ints
    """How often it was benched since it last had more than one granule."""
    probing: Bools
    """Whether it was given samples to see how fast it is now, and has not reported yet."""

    @classmethod
    def fresh(cls, num_workers: int) -> Bench:
        zeros = np.zeros(num_workers, dtype=np.int64)
        return cls(zeros, zeros, np.zeros(num_workers, dtype=bool))

    def observe(self, current: Ints, observed: Bools, granularity: int) -> Bench:
        """Return the bench at the next boundary; who sits on it shows in the sizes in force."""
        sits = current == 0
        return Bench(
            idle=np.where(sits, self.idle + 1, 0),
            benchings=np.where(
                current > granularity, 0, self.benchings + (sits & (self.idle == 0))
            ),
            probing=self.back(current) & ~observed,
        )

    def back(self, current: Ints) -> Bools:
        """Return which workers have samples again of which they have not reported yet."""
        back: Bools = (current > 0) & ((self.idle > 0) | self.probing)
        return back

    def due(self, current: Ints, patience: int) -> Bools:
        """Return which benched workers are to be tried again now."""
        doublings = np.clip(self.benchings - 1, 0, _MOST_DOUBLINGS)
        due: Bools = (current == 0) & (self.idle >= patience * 2**doublings)
        return due

    def bounds(
        self, current: Ints, due: Bools, lo: Floats, hi: Floats, granularity: int
    ) -> tuple[Floats, Floats]:
        """Return the highest and lowest sizes with benched workers held at 0 or at one granule."""
        tried = due | self.probing
        sitting = (current == 0) & ~tried
        fixed = np.where(sitting, 0.0, granularity)
        held = sitting | tried
        return np.where(held, fixed, hi), np.where(held, fixed, lo)
