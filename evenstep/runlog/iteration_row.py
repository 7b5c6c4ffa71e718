"""A row: one iteration in a run log, with one array per quantity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.core import Floats, Ints
from evenstep.errors import InvalidSetting
from evenstep.runlog.checks import COUNT, check

MEASURES = ("times", "waiting", "predicted_speeds", "cpu", "memory", "device_memory")
"""The quantities that may be unknown for a worker: floats, NaN where unknown."""

QUANTITIES = ("batch_sizes", *MEASURES, "caps")
"""All quantities that a row has for each worker, by their names in the file."""

_DTYPES = {
    name: np.dtype(np.float64) if name in MEASURES else np.dtype(np.int64) for name in QUANTITIES
}


@dataclass(frozen=True, eq=False)
class IterationRow:
    """One iteration: the batch size, the time and other measurements of every worker.

    >>> row = IterationRow(7, plan=2, start=1.5, batch_sizes=[8, 24], times=[0.2, 0.3])
    >>> row.speeds
    array([40., 80.])
    """

    iteration: int
    """k, counted from 0; it rises from row to row, and may skip numbers."""
    plan: int
    """Number of the plan in use."""
    start: float
    """When the iteration began, in seconds since the run began; NaN where unknown."""
    batch_sizes: Ints
    """x: samples processed."""
    times: Floats
    """t, in seconds, waiting excluded; NaN where the worker had no batch."""
    waiting: Floats | None = None
    """Seconds blocked at the barrier; None, here and below: unknown for all workers."""
    predicted_speeds: Floats | None = None
    """v predicted for this iteration, in samples per second."""
    cpu: Floats | None = None
    """c at the start of the iteration."""
    memory: Floats | None = None
    """m at the start of the iteration."""
    device_memory: Floats | None = None
    """Share of the device's memory in use at its peak."""
    caps: Ints | None = None
    """x^o: the largest batch size of each worker, in samples; UNLIMITED where there is none."""

    def __post_init__(self) -> None:
        check("iteration", self.iteration, COUNT)
        check("plan", self.plan, COUNT)
        shape = (np.size(self.batch_sizes),)
        for name, dtype in _DTYPES.items():
            values = getattr(self, name)
            if values is None:
                continue
            array = np.asarray(values, dtype)
            if array.shape != shape:
                raise InvalidSetting(
                    f"{name} must have one entry per worker {shape}, got shape {array.shape}"
                )
            if array is not values:
                object.__setattr__(self, name, array)

    @property
    def num_workers(self) -> int:
        return len(self.batch_sizes)

    @property
    def speeds(self) -> Floats:
        """``v = x / t``: the actual speeds, in samples per second; NaN where there is none."""
        return speeds_of(self.batch_sizes, self.times)

    @property
    def iteration_time(self) -> float:
        """Seconds until the last worker finished: the largest t plus waiting; NaN where unknown.

        Where waiting is unknown, it is the largest t.
        """
        waiting = 0.0 if self.waiting is None else np.nan_to_num(self.waiting)
        longest = float(np.fmax.reduce(self.times + waiting, initial=-np.inf))
        return longest if longest > -np.inf else np.nan


def speeds_of(batch_sizes: Ints, times: Floats) -> Floats:
    """Return ``x / t``, NaN where a worker had no batch or no time.

    >>> speeds_of(np.array([8, 0]), np.array([0.2, np.nan]))
    array([40., nan])
    """
    speeds = np.full(np.shape(times), np.nan)
    np.divide(batch_sizes, times, out=speeds, where=(batch_sizes > 0) & (times > 0))
    return speeds


def waiting_of(waiting: Floats, times: Floats) -> Floats:
    """Return the waiting; where none was recorded, the difference to the longest time."""
    if not np.isnan(waiting).all():
        return waiting
    return np.fmax.reduce(times, axis=1, keepdims=True) - times


def share_waited(waiting: Floats, times: Floats) -> float:
    """Return the fraction of the workers' time that was spent waiting; NaN where unknown.

    >>> share_waited(np.array([1.0, 0.0]), np.array([1.0, 2.0]))
    0.25
    """
    waited, worked = float(np.nansum(waiting)), float(np.nansum(times))
    return waited / (waited + worked) if waited + worked > 0 else np.nan
