"""Thinning of long runs with many workers for pictures: fewer points, smoother lines, bands."""

from __future__ import annotations

import numpy as np

from evenstep.core.arrays import Floats, mean, median

MAX_POINTS = 1200
"""Points along a line: a picture has no more pixels."""


def group_size(num_iterations: int) -> int:
    """Return how many iterations a point stands for.

    >>> group_size(1200), group_size(1201)
    (1, 2)
    """
    return -(-num_iterations // MAX_POINTS)


def group_medians(values: Floats, every: int) -> Floats:
    """Return the median of each `every` rows, column by column; NaN where all values are.

    >>> group_medians(np.array([1.0, 2.0, 9.0, np.nan, 4.0]), every=3)
    array([2., 4.])
    """
    return values if every == 1 else median(_grouped(values, every), axis=1)


def group_means(values: Floats, every: int) -> Floats:
    """Return the mean of each `every` rows; NaN where all values are."""
    return values if every == 1 else mean(_grouped(values, every), axis=1)


def running_median(series: Floats, window: int) -> Floats:
    """Return the median of the `window` values around each value, of fewer at the ends.

    >>> running_median(np.array([1.0, 1.0, 9.0, 2.0, 2.0]), window=3)
    array([1., 1., 2., 2., 2.])
    """
    return series if window == 1 else median(_windows(series, window), axis=1)


def running_mean(series: Floats, window: int) -> Floats:
    """Return the mean of the `window` values around each value, of fewer at the ends."""
    return series if window == 1 else mean(_windows(series, window), axis=1)


def quantiles(matrix: Floats) -> Floats:
    """Return the 5, 25, 50, 75 and 95 % quantiles of each row, NaN where no value is known.

    >>> quantiles(np.array([[0.0, 4.0, 8.0]]))[1:4, 0]
    array([2., 4., 6.])
    """
    known = ~np.isnan(matrix).all(axis=1)
    bands = np.full((5, len(matrix)), np.nan)
    if known.any():
        rows = matrix[known]
        # nanquantile works row by row, which is slow and seldom needed.
        quantile = np.nanquantile if np.isnan(rows).any() else np.quantile
        bands[:, known] = quantile(rows, (0.05, 0.25, 0.5, 0.75, 0.95), axis=1)
    return bands


def _grouped(values: Floats, every: int) -> Floats:
    return _filled(values, 0, -len(values) % every).reshape(-1, every, *values.shape[1:])


def _windows(series: Floats, window: int) -> Floats:
    return np.lib.stride_tricks.sliding_window_view(
        _filled(series, window // 2, (window - 1) // 2), window
    )


def _filled(values: Floats, before: int, after: int) -> Floats:
    """Return the values padded with NaN."""
    width = [(before, after)] + [(0, 0)] * (values.ndim - 1)
    return np.pad(values, width, constant_values=np.nan)
