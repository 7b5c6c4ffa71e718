"""The level of each worker: what its speeds are relative to, followed while it moves.

Models are about speeds relative to their worker's level, so that all workers look alike to them.
A level is a mean over about a hundred observations. When a speed changes for a reason that the
model does not see, its residuals keep one sign; a CUSUM test notices, and the mean begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.core.arrays import Bools, Floats, Ints, require
from evenstep.errors import StateFileError

_SPAN = 100
_OUTLIER = 3.0
_SLACK, _ALARM = 1.0, 6.0
_FIRST_NOISE = 0.1
_LEAST_NOISE = 0.03


@dataclass(frozen=True, eq=False)
class Levels:
    """The levels of all workers, in log speed."""

    level: Floats
    age: Ints
    """Observations that the level is the mean of, at most `_SPAN`."""
    noise: Floats
    """The usual size of a residual."""
    rise: Floats
    fall: Floats
    """Evidence (CUSUM) that the speed has risen, or fallen, unexplained."""

    @classmethod
    def unknown(cls, num_workers: int) -> Levels:
        zeros = np.zeros(num_workers)
        age = np.zeros(num_workers, dtype=np.int64)
        return cls(zeros, age, np.full(num_workers, _FIRST_NOISE), zeros, zeros)

    @classmethod
    def found(cls, level: Floats, noise: Floats) -> Levels:
        """Take up levels that come out of a training, with the size of its errors."""
        zeros, age = np.zeros(len(level)), np.full(len(level), _SPAN)
        return cls(level, age, np.maximum(noise, _LEAST_NOISE), zeros, zeros)

    def check(self) -> None:
        """Raise StateFileError if these levels, from a file, cannot be."""
        require(self.age >= 0, "saved age of a level must be >= 0", self.age, error=StateFileError)
        require(self.noise > 0, "saved noise must be > 0", self.noise, error=StateFileError)

    def followed(self, residuals: Floats, new: Bools) -> Levels:
        """Return the levels after `residuals`, of those workers that have a `new` one.

        >>> levels = Levels.unknown(1)
        >>> for speed in (4.0, 4.2, 4.1, 4.1, 5.0, 5.0, 5.0):
        ...     levels = levels.followed(speed - levels.level, np.array([True]))
        >>> levels.level.round(2)
        array([5.])
        """
        z = np.clip(residuals / self.noise, -_OUTLIER, _OUTLIER)
        rise = np.maximum(0.0, self.rise + z - _SLACK)
        fall = np.maximum(0.0, self.fall - z - _SLACK)
        alarm = (rise >= _ALARM) | (fall >= _ALARM)
        age = np.where(alarm, 1, np.minimum(self.age + 1, _SPAN))
        # A mean that begins takes a residual as it is; later, a spike is not to move it much.
        moves = np.where(age == 1, residuals, z * self.noise) / age
        return Levels(
            level=np.where(new, self.level + moves, self.level),
            age=np.where(new, age, self.age),
            noise=self.noise,
            rise=np.where(new, np.where(alarm, 0.0, rise), self.rise),
            fall=np.where(new, np.where(alarm, 0.0, fall), self.fall),
        )
