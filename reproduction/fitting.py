"""Fits of computation time against batch size: a line, and one that is flat until saturated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.core import Floats

_CANDIDATES = 64
"""Saturation thresholds that are tried between the smallest and the largest batch size."""
_WORTH = 0.5
"""A threshold is accepted if it leaves less than this share of the line's squared error."""


@dataclass(frozen=True)
class Fit:
    """``t = overhead + per_sample * max(x, saturation)``, in seconds."""

    overhead: float
    per_sample: float
    saturation: float
    """x^s; 0 where the line alone fits."""
    r2: float
    """The share of the variance that the fit explains."""

    def times(self, sizes: Floats) -> Floats:
        times: Floats = self.overhead + self.per_sample * np.maximum(sizes, self.saturation)
        return times


def fit_line(sizes: Floats, seconds: Floats, saturation: float = 0.0) -> Fit:
    """Return the line with the least relative squared error.

    >>> fit = fit_line(np.array([1.0, 2.0, 4.0]), np.array([3.0, 5.0, 9.0]))
    >>> round(fit.overhead, 9), round(fit.per_sample, 9), round(fit.r2, 9)
    (1.0, 2.0, 1.0)
    """
    inputs = np.maximum(sizes, saturation)
    design = np.stack([1 / seconds, inputs / seconds], axis=1)
    (overhead, per_sample), *_ = np.linalg.lstsq(design, np.ones(len(sizes)), rcond=None)
    left = seconds - (overhead + per_sample * inputs)
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    r2 = 1 - float((left**2).sum()) / spread if spread > 0 else 1.0
    return Fit(float(overhead), float(per_sample), saturation, r2)


def fit_saturating(sizes: Floats, seconds: Floats) -> Fit:
    """Return the line, or one that is flat at first where that fits much better.

    Three figures need four points; with fewer, it is the line.

    >>> sizes = np.array([8.0, 16.0, 32.0, 64.0, 128.0])
    >>> fit = fit_saturating(sizes, 1 + 0.5 * np.maximum(sizes, 32))
    >>> round(fit.overhead, 6), round(fit.per_sample, 6), round(fit.saturation)
    (1.0, 0.5, 32)
    """
    line = fit_line(sizes, seconds)
    if len(sizes) < 4:
        return line
    # Two points at least must lie beyond, or the slope would be arbitrary.
    tried = np.linspace(sizes[0], sizes[-2], _CANDIDATES)
    tried = np.unique(np.concatenate([tried, sizes[1:-1]]))
    fits = [fit_line(sizes, seconds, float(threshold)) for threshold in tried[1:]]
    best = min(fits, key=lambda fit: _error(fit, sizes, seconds))
    if _error(best, sizes, seconds) < _WORTH * _error(line, sizes, seconds):
        return best
    return line


def _error(fit: Fit, sizes: Floats, seconds: Floats) -> float:
    return float(((fit.times(sizes) / seconds - 1) ** 2).sum())
