"""The memory model: predicts the largest batch size that fits into a worker's memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.core import UNLIMITED, Bools, Floats, Ints, Reports

GUARD = 0.95
"""Share of the device's memory that a plan may fill (the paper leaves 5 % free)."""
_LEAST_SLOPE = 0.05
"""A sample takes at least this part of its share of the memory in use, even if two noisy readings
differ less."""


@dataclass(frozen=True, eq=False)
class MemoryModel:
    """m as a linear function of the batch size, per worker.

    Until two sizes at least 10 % (and 2 samples) apart were seen, the line goes through the
    origin. This overestimates the slope, as the network itself takes memory too, and is safe.
    """

    size: Floats
    """Batch size of the newest reading; NaN if there is none."""
    used: Floats
    """Share of the memory in use at that size."""
    anchor_size: Floats
    """Batch size of an older reading, to measure the slope from."""
    anchor_used: Floats
    slope: Floats
    """Share of the memory that one more sample takes; NaN until measured."""

    @classmethod
    def fresh(cls, num_workers: int) -> MemoryModel:
        return cls(*np.full((5, num_workers), np.nan))

    def observe(self, reports: Reports) -> MemoryModel:
        """Return the model after the readings of one boundary."""
        x, m = reports.batch_sizes.astype(np.float64), reports.device_memory
        new = np.isfinite(m) & (x > 0)
        if not new.any():
            return self
        with np.errstate(invalid="ignore", divide="ignore"):
            slope = (m - self.anchor_used) / (x - self.anchor_size)
            apart = np.abs(x - self.anchor_size) >= np.maximum(2, 0.1 * np.maximum(x, self.size))
        moved: Bools = new & apart
        anchored: Bools = moved | (new & np.isnan(self.anchor_size))
        return MemoryModel(
            size=np.where(new, x, self.size),
            used=np.where(new, m, self.used),
            anchor_size=np.where(anchored, x, self.anchor_size),
            anchor_used=np.where(anchored, m, self.anchor_used),
            slope=np.where(moved, slope, self.slope),
        )

    def slopes(self) -> Floats:
        """Return the share of the memory that one more sample takes; NaN without readings."""
        share = self.used / self.size
        measured = np.isfinite(self.slope) & (self.slope > 0)
        return np.where(measured, np.maximum(self.slope, _LEAST_SLOPE * share), share)

    def caps(self) -> Ints:
        """Return the largest size that stays below the guard; unlimited without readings."""
        known = np.isfinite(self.size)
        with np.errstate(invalid="ignore", divide="ignore"):
            caps = np.floor(self.size + (GUARD - self.used) / self.slopes())
        return np.where(known, np.clip(caps, 0, UNLIMITED), UNLIMITED).astype(np.int64)
