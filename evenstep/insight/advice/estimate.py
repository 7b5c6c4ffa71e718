"""An estimate: a value, and from where to where it could as well be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.core import Floats

COVERED = 0.9
"""Share of the draws between the two ends of an estimate."""


@dataclass(frozen=True)
class Estimate:
    """A value with an interval of 90 %, as drawing again from what was recorded shows it."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, draws: Floats) -> Estimate:
        """Make the estimate of a value from what it is in many draws; it is within its ends.

        >>> Estimate.of(3.0, np.arange(101.0))
        Estimate(value=3.0, low=3.0, high=95.0)
        """
        low, high = np.quantile(draws, ((1 - COVERED) / 2, (1 + COVERED) / 2))
        return cls(value, min(float(low), value), max(float(high), value))
