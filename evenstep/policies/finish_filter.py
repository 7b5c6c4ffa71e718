"""The filter of `equal_finish`: models each worker's time as a function of its batch size.

A Kalman filter per worker tracks the level l (batch processing time at the size x last used) and
the slope b (seconds per further sample), so that ``t(y) = l + b (y - x)`` near x. All workers
are one set of arrays. Only operations that IEEE 754 defines to the last bit are used, so that
every machine that filters the same reports plans the same sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evenstep.core import Bools, Floats, Ints, remap_rows

_FIRST_LEVEL_ERROR = 0.05
_FIRST_SLOPE_ERROR = 0.6
_FIRST_NOISE = 0.05
_TRANSPORT_ERROR = 0.5
"""Relative error of the slope after a move as large as the batch itself."""
_DRIFT = 0.002
_OUTLIER = 3.0
_ALARM = 6.0
_SLACK = 1.0
_REOPENED_SLOPE = 0.3
_NOISE_RATE = 0.05
_LEAST_NOISE, _MOST_NOISE = 0.003, 0.2
_LEAST_SLOPE = 0.05
"""A slope is at least this part of l / x, and at most l / x: overhead cannot be negative."""


@dataclass(frozen=True, eq=False)
class FinishFilter:
    """The state of the filter, one entry per worker."""

    seen: Bools
    size: Floats
    """x: batch size of the last observation."""
    level: Floats
    """l: batch processing time at that size, in seconds."""
    slope: Floats
    """b: seconds per further sample."""
    level_var: Floats
    cov: Floats
    slope_var: Floats
    noise: Floats
    """Standard deviation of t relative to l."""
    diff_var: Floats
    """Relative variance of t, from successive differences at one size."""
    rise: Floats
    """Evidence (CUSUM) that the worker has become slower."""
    fall: Floats
    """Evidence that it has become faster."""
    last: Floats
    """The last three t, newest last."""

    @classmethod
    def fresh(cls, num_workers: int) -> FinishFilter:
        ones = np.ones(num_workers)
        return replace(_first(ones, ones), seen=np.zeros(num_workers, dtype=bool))

    def observe(self, sizes: Ints, times: Floats) -> FinishFilter:
        """Return the filter after one iteration's batch sizes and times; NaN times are skipped."""
        new = np.isfinite(times)
        if not new.any():
            return self
        x = np.where(new, sizes, self.size).astype(np.float64)
        t = np.where(new, times, self.level)
        updated = _start(self, x, t, new & ~self.seen)
        followed = _follow(self, x, t)
        return _choose(new & self.seen, followed, updated)

    def times_at(self, sizes: Ints | Floats) -> Floats:
        """Return t(y) of every worker."""
        return self.level + self.slope * (sizes - self.size)

    def offsets(self) -> Floats:
        """Return t(0), extrapolated."""
        return self.level - self.slope * self.size

    def uncertainty(self) -> Floats:
        """Return the standard deviation of the level relative to it."""
        relative: Floats = np.sqrt(self.level_var) / self.level
        return relative

    def filled(self, sizes: Ints) -> FinishFilter:
        """Return the filter in which workers never seen are like the median of the others."""
        if self.seen.all():
            return self
        per_sample = float(np.median((self.level / self.size)[self.seen]))
        x = np.maximum(sizes, 1).astype(np.float64)
        return _start(self, x, per_sample * x, ~self.seen)

    def reopened(self, which: Bools) -> FinishFilter:
        """Return the filter with some workers' levels forgotten and their slopes uncertain."""
        if not which.any():
            return self
        return replace(
            self,
            level_var=np.where(which, (10 * self.level) ** 2, self.level_var),
            slope_var=np.where(which, (_FIRST_SLOPE_ERROR * self.slope) ** 2, self.slope_var),
        )


def _start(old: FinishFilter, x: Floats, t: Floats, which: Bools) -> FinishFilter:
    """Start some workers with a first observation."""
    return _choose(which, _first(x, t), old) if which.any() else old


def _first(x: Floats, t: Floats) -> FinishFilter:
    """Return the filter after one observation: all of the time might be overhead, or none."""
    zeros = np.zeros_like(t)
    return FinishFilter(
        seen=np.ones(len(t), dtype=bool),
        size=x,
        level=t,
        slope=t / x,
        level_var=(_FIRST_LEVEL_ERROR * t) ** 2,
        cov=zeros,
        slope_var=(_FIRST_SLOPE_ERROR * t / x) ** 2,
        noise=np.full_like(t, _FIRST_NOISE),
        diff_var=np.full_like(t, _FIRST_NOISE**2),
        rise=zeros,
        fall=zeros,
        last=np.repeat(t[:, None], 3, axis=1),
    )


def _follow(old: FinishFilter, x: Floats, t: Floats) -> FinishFilter:
    """Transport the level to the size used, then correct it by the time measured."""
    moved = x - old.size
    level_var = old.level_var + 2 * moved * old.cov + moved**2 * old.slope_var
    cov = old.cov + moved * old.slope_var
    slope_var = old.slope_var + (_TRANSPORT_ERROR * old.slope * moved / old.size) ** 2
    level = np.maximum(old.level + old.slope * moved, 0.05 * t)

    level_var = level_var + (_DRIFT * level) ** 2
    spread = level_var + (old.noise * level) ** 2
    residual = t - level
    z = residual / np.sqrt(spread)
    bounded = np.clip(z, -_OUTLIER, _OUTLIER)
    rise = np.maximum(0.0, old.rise + bounded - _SLACK)
    fall = np.maximum(0.0, old.fall - bounded - _SLACK)
    diff_var, noise = _noise(old, level, t, moved == 0)

    # A slow outlier is a spike and ignored; a fast one is evidence of up to three deviations.
    residual = np.where(z > _OUTLIER, 0.0, np.maximum(residual, -_OUTLIER * np.sqrt(spread)))
    level_gain, slope_gain = level_var / spread, cov / spread
    level = level + level_gain * residual
    slope = old.slope + slope_gain * residual
    slope_var = slope_var - slope_gain * cov
    cov = cov * (1 - level_gain)
    level_var = level_var * (1 - level_gain)
    last = np.column_stack((old.last[:, 1:], t))

    # A change: take the level from the last times, and reopen the slope, which may be wrong now.
    alarm = (rise >= _ALARM) | (fall >= _ALARM)
    if alarm.any():
        level = np.where(alarm, _middle(last), level)
        least = _REOPENED_SLOPE * level / x
        level_var = np.where(alarm, (noise * level) ** 2 / 2, level_var)
        cov = np.where(alarm, 0.0, cov)
        slope = np.where(alarm, np.maximum(slope, least), slope)
        slope_var = np.where(alarm, np.maximum(slope_var, least**2), slope_var)
        rise, fall = np.where(alarm, 0.0, rise), np.where(alarm, 0.0, fall)
    slope = np.clip(slope, _LEAST_SLOPE * level / x, level / x)
    return FinishFilter(
        old.seen, x, level, slope, level_var, cov, slope_var, noise, diff_var, rise, fall, last
    )


def _noise(old: FinishFilter, level: Floats, t: Floats, resting: Bools) -> tuple[Floats, Floats]:
    """Learn the noise from successive differences at one size.

    Innovations are unsuitable: a spike during a large move distorts them, and a noise estimate
    that is too large hides a wrong slope for dozens of iterations.
    """
    step = np.minimum((t - old.last[:, -1]) ** 2 / 2, 4 * (old.noise * level) ** 2) / level**2
    diff_var = np.where(resting, old.diff_var + _NOISE_RATE * (step - old.diff_var), old.diff_var)
    typical = float(np.median(diff_var))
    variance = np.clip(np.maximum(diff_var, 0.5 * typical), _LEAST_NOISE**2, _MOST_NOISE**2)
    return diff_var, np.where(resting, np.sqrt(variance), old.noise)


def _middle(last: Floats) -> Floats:
    """Return the median of three."""
    a, b, c = last.T
    middle: Floats = np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))
    return middle


def _choose(which: Bools, new: FinishFilter, old: FinishFilter) -> FinishFilter:
    if which.all():
        return new
    if not which.any():
        return old
    return remap_rows(new, old, np.where(which, np.arange(len(which)), -1))
