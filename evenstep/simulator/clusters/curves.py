"""Curves: computation time against batch size, for all workers in one object.

Every curve is non-decreasing and piecewise linear. That covers a CPU's x / v, a GPU's launch
overhead and saturation (section 3.3 of the paper), and measured tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.core import Floats, Ints
from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.tables import require_rows

Points = Sequence[tuple[float, float]]
"""Corners (batch size, seconds) of one curve in rising order; the last piece is extended."""


def linear(speed: float) -> Points:
    """Return the curve x / v of a worker with `speed` samples per second.

    >>> linear(50.0)
    ((0.0, 0.0), (1.0, 0.02))
    """
    _require(0 < speed < np.inf, f"speed must be finite and > 0, got {speed}")
    return _rising((0.0, 0.0), (1.0, 1.0 / speed))


def affine(overhead: float, per_sample: float, saturation: float = 0.0) -> Points:
    """Return ``overhead + per_sample * max(x, saturation)``: constant up to saturation.

    >>> affine(0.25, 0.125, saturation=8)
    ((0.0, 1.25), (8.0, 1.25), (9.0, 1.375))
    """
    _require(0 < per_sample < np.inf, f"per_sample must be finite and > 0, got {per_sample}")
    _require(0 <= saturation < np.inf, f"saturation must be finite and >= 0, got {saturation}")
    least = overhead + per_sample * saturation
    _require(
        0 <= least < np.inf and (least > 0 or saturation == 0),
        f"overhead must be finite and leave every time > 0, got {overhead}",
    )
    corner = (float(saturation), least)
    beyond = (saturation + 1.0, least + per_sample)
    return _rising(corner, beyond) if saturation == 0 else _rising((0.0, least), corner, beyond)


def table(points: Points) -> Points:
    """Return the curve through measured points: flat before the first, then linear.

    A time below an earlier one is raised to it, so that the curve stays monotone. Beyond the last
    point the last piece is extended or, if it is flat, the average slope of the whole table.

    >>> table([(8, 0.25), (16, 0.5), (24, 0.375)])
    ((0.0, 0.25), (8.0, 0.25), (16.0, 0.5), (24.0, 0.5), (25.0, 0.515625))
    """
    _require(len(points) >= 2, f"a table must have at least 2 rows, got {len(points)}")
    sizes, times = np.array(points, dtype=float).T
    _require_measured(sizes, times)
    times = np.maximum.accumulate(times)
    if times[-1] == times[-2]:
        slope = (times[-1] - times[0]) / (sizes[-1] - sizes[0])
        sizes = np.append(sizes, sizes[-1] + 1)
        times = np.append(times, times[-1] + slope)
    start = () if sizes[0] == 0 else ((0.0, float(times[0])),)
    return _rising(*start, *zip(sizes.tolist(), times.tolist(), strict=True))


def _rising(*points: tuple[float, float]) -> Points:
    """Return the points; reject a last piece too flat or too steep for floating point."""
    (x, t), (later_x, later_t) = points[-2:]
    slope = (later_t - t) / (later_x - x)
    _require(0 < slope < np.inf, f"a curve must end rising, got {slope} seconds per sample")
    return points


def _require_measured(sizes: Floats, times: Floats) -> None:
    nothing = (sizes == 0) & (times == 0)
    usable = np.isfinite(times) & ((times > 0) | nothing)
    require_rows(np.isfinite(sizes) & (sizes >= 0), "batch_size must be finite and >= 0", sizes)
    require_rows(np.diff(sizes, prepend=-1) > 0, "batch_size must rise from row to row", sizes)
    require_rows(usable, "seconds must be finite and > 0", times)
    _require(times.max() > times[0], f"seconds must rise, got none above the first {times[0]:g}")


@dataclass(frozen=True, eq=False)
class Curves:
    """The curves of all workers as arrays of corners, padded to the longest."""

    sizes: Floats
    """Batch size at each corner, (worker, corner); infinite beyond a worker's last."""
    times: Floats
    """Seconds at each corner; infinite beyond a worker's last."""
    slopes: Floats
    """Seconds per sample after each corner."""

    @classmethod
    def of(cls, curves: Sequence[Points]) -> Curves:
        """Put one curve per worker into arrays.

        >>> curves = Curves.of([linear(10.0), affine(1.0, 0.5, saturation=4)])
        >>> curves.times_at(np.array([5, 2]))
        array([0.5, 3. ])
        >>> curves.largest_within(np.array([0.55, 3.5]))
        array([5.5, 5. ])
        """
        width = max(len(points) for points in curves)
        sizes, times = np.full((2, len(curves), width), np.inf)
        slopes = np.zeros((len(curves), width))
        for i, points in enumerate(curves):
            x, t = np.array(points, dtype=float).T
            sizes[i, : len(x)], times[i, : len(x)] = x, t
            slope = np.diff(t) / np.diff(x)
            slopes[i, : len(x)] = np.append(slope, slope[-1])
        return cls(sizes, times, slopes)

    @property
    def num_workers(self) -> int:
        return len(self.sizes)

    def times_at(self, sizes: Ints | Floats) -> Floats:
        """Return t(x) of every worker, in seconds."""
        return self._follow(self.sizes, sizes, self.times, self.slopes)

    def largest_within(self, times: Floats) -> Floats:
        """Return the largest x with t(x) <= time, as a real number; -1 where there is none."""
        with np.errstate(divide="ignore", invalid="ignore"):
            sizes = self._follow(self.times, times, self.sizes, 1.0 / self.slopes)
        return np.where(times < self.times[:, 0], -1.0, sizes)

    def _follow(self, along: Floats, at: Floats | Ints, start: Floats, slopes: Floats) -> Floats:
        corner = np.maximum((along <= at[:, None]).sum(axis=1) - 1, 0)
        rows = np.arange(self.num_workers)
        end: Floats = start[rows, corner] + slopes[rows, corner] * (at - along[rows, corner])
        return end


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise InvalidSetting(message)
