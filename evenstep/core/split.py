"""The exact integer split: sizes that add up to the total and finish earliest.

Minimise ``max_i t_i(x_i)`` subject to ``sum x = X``, ``lo <= x <= hi`` and x a multiple of the
granularity (Eq. 3 of the paper, solved exactly over the integers). Every policy stands on this.

The method: find the water level T at which the real-valued sizes add up to X; round them down; give
each remaining unit (at most about one per worker) to the worker that would finish its next unit
earliest, ties to the lower position. The solution is that of dealing out all X units one by one, in
O(n log n).

A plan must be the same on every machine that computes it, so this file uses only operations that
IEEE 754 fixes to the last bit, and no sum whose order depends on the processor.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evenstep.core.arrays import Floats, Ints, require
from evenstep.core.limits import Limits, check_feasible

LARGEST_TOTAL = 10**12
"""Samples up to which a split is quick; above, rounding leaves millions to deal out singly."""

_MARGIN = 1e-9
"""Bound of rounding errors relative to the level: units closer to the level than this are dealt out
by comparing their exact finish times, not by rounding down."""


def split_proportional(total: int, speeds: Floats, limits: Limits) -> Ints:
    """Split the total over workers with t = x / v (Alg. 1, lines 5 and 6).

    >>> split_proportional(10, np.array([1.0, 2.0, 4.0]), Limits.of(3))
    array([1, 3, 6])
    """
    _require_positive(speeds, "speed")
    return split_affine(total, np.zeros(len(speeds)), 1.0 / speeds, limits)


def split_affine(total: int, offsets: Floats, slopes: Floats, limits: Limits) -> Ints:
    """Split the total over workers with t = offset + slope x.

    A size of 0 costs nothing where the minimum is 0: a worker whose first sample would finish last
    of all gets none.

    >>> split_affine(10, np.array([0.0, 3.0]), np.array([1.0, 1.0]), Limits.of(2))
    array([7, 3])
    """
    _require_positive(slopes, "slope")
    require(np.isfinite(offsets), "offset must be finite", offsets)
    g = limits.granularity
    lo, hi = limits.bounds(total)
    return g * _split_units(total // g, offsets, slopes * g, lo // g, hi // g)


def split_monotone(
    total: int, largest: Callable[[float], Ints], limits: Limits, guess: float = 1.0
) -> Ints:
    """Split the total over workers with any non-decreasing t(x), to one part in 10^12.

    `largest(level)` returns for each worker the largest size that finishes by `level`, or a
    negative number where none does. Slower than the exact formulas; the oracle uses it.

    >>> speeds = np.array([1.0, 2.0, 4.0])
    >>> split_monotone(10, lambda level: np.floor(level * speeds).astype(int), Limits.of(3))
    array([1, 3, 6])
    """
    lo, hi = limits.bounds(total)
    g = limits.granularity

    def sizes_at(level: float) -> Ints:
        return np.clip(largest(level) // g * g, lo, hi)

    low, high = 0.0, guess
    while int(sizes_at(high).sum()) < total:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = low + (high - low) / 2
        if int(sizes_at(middle).sum()) < total:
            low = middle
        else:
            high = middle
    sizes = sizes_at(low)
    room = sizes_at(high) - sizes
    before = np.cumsum(room) - room
    sizes += np.clip(total - int(sizes.sum()) - before, 0, room)
    return sizes


def makespan(sizes: Ints, offsets: Floats, slopes: Floats) -> float:
    """Return the time at which the last worker finishes; a worker of size 0 does not count."""
    working = sizes > 0
    return float(np.max(offsets + slopes * sizes, where=working, initial=0.0))


def _split_units(total: int, offsets: Floats, slopes: Floats, lo: Ints, hi: Ints) -> Ints:
    level = water_level(total, offsets, slopes, lo, hi)
    # A worker that starts far above the level widens its own margin, not that of the others.
    scale = np.maximum(max(abs(level), -float(offsets.min())), offsets)
    safe = level - _MARGIN * scale
    sizes = np.clip(np.floor((safe - offsets) / slopes), lo, hi).astype(np.int64)
    remaining = total - int(sizes.sum())
    if remaining > 0:
        sizes += _hand_out(remaining, offsets, slopes, sizes, hi)
    assert int(sizes.sum()) == total, (total, sizes)
    return sizes


def water_level(total: float, offsets: Floats, slopes: Floats, lo: Ints, hi: Ints) -> float:
    """Return the level T at which the real-valued sizes ``clip((T - a)/b, lo, hi)`` add up.

    That sum is piecewise linear in T, with a kink where a worker leaves its lowest size and one
    where it reaches its highest: sort the kinks, search for the piece, interpolate in it. Running
    sums of the slopes would need no search, but fail with speeds that are far apart: once the fast
    workers are full, only rounding errors remain of them.

    >>> water_level(9, np.zeros(2), np.array([1.0, 0.5]), np.array([0, 0]), np.array([9, 4]))
    5.0
    """
    check_feasible(int(total), lo, hi)
    full = offsets + slopes * hi
    kinks = np.sort(np.concatenate((offsets + slopes * lo, full)))

    def filled(level: float) -> float:
        sizes = np.clip((level - offsets) / slopes, lo, hi)
        return float(np.cumsum(np.where(level >= full, hi, sizes))[-1])

    first, last = 0, len(kinks) - 1
    while last - first > 1:
        middle = (first + last) // 2
        if filled(kinks[middle]) <= total:
            first = middle
        else:
            last = middle
    low, high = filled(kinks[first]), filled(kinks[last])
    share = min(max((total - low) / (high - low), 0.0), 1.0) if high > low else 0.0
    return float(kinks[first] + share * (kinks[last] - kinks[first]))


def _hand_out(units: int, offsets: Floats, slopes: Floats, sizes: Ints, hi: Ints) -> Ints:
    """Return how many further units each worker gets, earliest finish first."""
    room = np.minimum(hi - sizes, units)
    each = 1
    while int(np.minimum(room, each).sum()) < units:
        each *= 2
    batch = np.minimum(room, each)
    finish = offsets + slopes * (sizes + batch)
    order = np.argsort(finish, kind="stable")
    # By this time, at least `units` further units are finished.
    deadline = finish[order[np.searchsorted(np.cumsum(batch[order]), units)]]
    within = np.floor((deadline - offsets) / slopes) - sizes + 1
    counts = np.clip(within, np.where(finish <= deadline, batch, 0), room).astype(np.int64)
    workers = np.repeat(np.arange(len(sizes)), counts)
    first = np.cumsum(counts) - counts
    unit = np.arange(len(workers)) - first[workers] + 1
    finish = offsets[workers] + slopes[workers] * (sizes[workers] + unit)
    earliest = np.argsort(finish, kind="stable")[:units]
    return np.bincount(workers[earliest], minlength=len(sizes)).astype(np.int64)


def _require_positive(values: Floats, what: str) -> None:
    require(np.isfinite(values) & (values > 0), f"{what} must be finite and > 0", values)
