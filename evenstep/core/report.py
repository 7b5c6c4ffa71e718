"""Reports of the workers at an iteration boundary.

The report at the boundary of iteration k carries the batch size and the batch processing time of
iteration k-1, and the usage at the start of k. A device that runs ahead of its host is measured
late: then `measured` is the iteration of batch size and time. One worker's report is a `Report`,
checked when it is made; decisions are made from `Reports`, with one array per quantity and one
entry per worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TypeGuard

import numpy as np

from evenstep.core.arrays import Bools, Floats, Ints, as_floats, as_ints, require
from evenstep.core.limits import UNLIMITED
from evenstep.errors import InvalidReport, MembershipError

SHORTEST, LONGEST = 1e-9, 1e9
"""Seconds between which a batch processing time must lie: filters square it and divide by it."""


def _is_finite(value: object) -> TypeGuard[float]:
    """Whether it is a number that a float can hold."""
    if type(value) is float:  # a check of the abstract class first would cost ten times as much
        return math.isfinite(value)
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is_fraction(value: object) -> bool:
    return _is_finite(value) and 0 <= value <= 1


def _is_count(value: object, least: int) -> TypeGuard[int]:
    """Whether it is a whole number that an array can hold."""
    if type(value) is not int and (not isinstance(value, Integral) or isinstance(value, bool)):
        return False
    return least <= int(value) <= UNLIMITED


@dataclass(frozen=True)
class Usage:
    """The driving resources of a worker at the start of an iteration, as fractions 0..1."""

    cpu: float = 1.0
    """c: share of the CPU that is available to the training process."""
    memory: float = 1.0
    """m: share of the memory that is free."""
    device_memory: float | None = None
    """Share of the device's memory in use at its peak (Alg. 2's m); None where unknown."""

    def __post_init__(self) -> None:
        if not (_is_fraction(self.cpu) and _is_fraction(self.memory)) or not (
            self.device_memory is None or _is_fraction(self.device_memory)
        ):
            raise InvalidReport(_wrong_fraction(self))


def _wrong_fraction(usage: Usage) -> str:
    """Return the error message for the first resource that is not a fraction."""
    named = {"cpu": usage.cpu, "memory": usage.memory, "device_memory": usage.device_memory}
    name, value = next((n, v) for n, v in named.items() if not _is_fraction(v))
    return f"usage {name} must be a fraction from 0 to 1, got {value!r}"


@dataclass(frozen=True)
class Report:
    """The report of one worker at the boundary of an iteration.

    >>> Report("w0", iteration=7, batch_size=32, batch_processing_time=-0.5)
    Traceback (most recent call last):
    evenstep.errors.InvalidReport: batch processing time of worker w0 must be from 1e-09 to \
1e+09 s, got -0.5
    """

    worker: str
    iteration: int
    """k: the iteration about to start."""
    batch_size: int | None = None
    """x of iteration k-1, in samples; None where the worker processed none."""
    batch_processing_time: float | None = None
    """t of iteration k-1, in seconds, waiting excluded; None where there is no x."""
    usage: Usage = Usage()
    """c and m at the start of iteration k."""
    cap: int | None = None
    """The largest size that the worker has found it can run; None where unknown."""
    measured: int | None = None
    """The iteration of x and t; None where that is k-1."""

    def __post_init__(self) -> None:
        if not isinstance(self.worker, str) or not self.worker:
            raise InvalidReport(f"worker must be a non-empty name, got {self.worker!r}")
        if not _is_count(self.iteration, least=0):
            raise InvalidReport(
                f"iteration of worker {self.worker} must be an integer from 0 to 2^53, "
                f"got {self.iteration!r}"
            )
        if self.cap is not None and not _is_count(self.cap, least=0):
            raise InvalidReport(
                f"cap of worker {self.worker} must be an integer from 0 to 2^53, got {self.cap!r}"
            )
        if self.measured is not None and not (
            _is_count(self.measured, least=0) and self.measured < self.iteration
        ):
            raise InvalidReport(
                f"iteration measured of worker {self.worker} must be an integer from 0 to "
                f"{self.iteration - 1}, got {self.measured!r}"
            )
        if (self.batch_size is None) != (self.batch_processing_time is None):
            raise InvalidReport(
                f"batch size and batch processing time of worker {self.worker} must come together, "
                f"got {self.batch_size!r} and {self.batch_processing_time!r}"
            )
        if self.batch_size is None:
            return
        if not _is_count(self.batch_size, least=1):
            raise InvalidReport(
                f"batch size of worker {self.worker} must be an integer from 1 to 2^53 "
                f"(or None with no time), got {self.batch_size!r}"
            )
        t = self.batch_processing_time
        if not (_is_finite(t) and SHORTEST <= t <= LONGEST):
            raise InvalidReport(
                f"batch processing time of worker {self.worker} must be from {SHORTEST:g} to "
                f"{LONGEST:g} s, got {t!r}"
            )


@dataclass(frozen=True, eq=False)
class Reports:
    """The reports of all workers at one boundary, as arrays in the order of the workers."""

    iteration: int
    """k: the iteration about to start."""
    batch_sizes: Ints
    """x of iteration k-1; 0 where the worker processed none."""
    times: Floats
    """t of iteration k-1, in seconds; NaN where there is none."""
    cpu: Floats
    """c at the start of k."""
    memory: Floats
    """m at the start of k."""
    device_memory: Floats
    """Share of the device's memory in use; NaN where unknown."""
    speeds: Floats | None = None
    """v of iteration k, where workers predict their own speeds."""
    caps: Ints | None = None
    """The largest size that each worker has found it can run, where any has."""
    measured: Ints | None = None
    """The iteration of each worker's x and t, -1 where unknown; None where it is k-1 for all."""

    @classmethod
    def silent(cls, iteration: int, num_workers: int) -> Reports:
        """Make the reports of workers without observations."""
        full = np.full(num_workers, 1.0)
        unknown = np.full(num_workers, np.nan)
        return cls(iteration, np.zeros(num_workers, dtype=np.int64), unknown, full, full, unknown)

    @classmethod
    def gather(cls, reports: Mapping[str, Report], workers: Sequence[str]) -> Reports:
        """Collect single reports into arrays; all workers must have reported for one iteration."""
        for worker in reports:
            if worker not in workers:
                raise MembershipError(f"worker {worker} is not a member: {', '.join(workers)}")
        missing = [worker for worker in workers if worker not in reports]
        if missing:
            raise InvalidReport(f"every worker must report, nothing came from {missing[0]}")
        rows = [reports[worker] for worker in workers]
        iterations = {row.iteration for row in rows}
        if len(iterations) != 1:
            raise InvalidReport(
                f"reports must be of one boundary, got iterations {sorted(iterations)}"
            )
        return cls(
            iteration=iterations.pop(),
            batch_sizes=as_ints([row.batch_size or 0 for row in rows]),
            times=_column([row.batch_processing_time for row in rows]),
            cpu=_column([row.usage.cpu for row in rows]),
            memory=_column([row.usage.memory for row in rows]),
            device_memory=_column([row.usage.device_memory for row in rows]),
            caps=_caps([row.cap for row in rows]),
            measured=_measured(rows),
        )

    @property
    def num_workers(self) -> int:
        return len(self.batch_sizes)

    @property
    def observed(self) -> Bools:
        """Whether each worker has a batch size and a time of the last iteration."""
        return np.isfinite(self.times)

    @property
    def measured_iterations(self) -> Ints:
        """The iteration of each worker's x and t, -1 where unknown."""
        if self.measured is not None:
            return self.measured
        return np.full(self.num_workers, self.iteration - 1)

    def without_times(self) -> Reports:
        """Return the reports without x and t."""
        n = self.num_workers
        nothing, unknown = np.zeros(n, dtype=np.int64), np.full(n, np.nan)
        return replace(self, batch_sizes=nothing, times=unknown, measured=None)

    def check(self) -> None:
        """Raise InvalidReport if an array holds a value that no worker can report."""
        n = self.num_workers
        for name in ("times", "cpu", "memory", "device_memory", "speeds", "caps", "measured"):
            values = getattr(self, name)
            if values is not None and values.shape != (n,):
                raise InvalidReport(
                    f"{name} must have one entry per worker ({n}), got {values.shape}"
                )
        if self.speeds is not None:
            ok = np.isfinite(self.speeds) & (self.speeds > 0)
            require(ok, "predicted speed must be finite and > 0", self.speeds, error=InvalidReport)
        if self.caps is not None:
            require(self.caps >= 0, "cap must be >= 0", self.caps, error=InvalidReport)
        if self.measured is not None:
            require(
                self.measured < self.iteration,
                f"iteration measured must be before {self.iteration}",
                self.measured,
                error=InvalidReport,
            )
        x, t = self.batch_sizes, self.times
        require(x >= 0, "batch size must be >= 0", x, error=InvalidReport)
        require(
            np.isnan(t) == (x == 0),
            "a time must come with a batch size > 0",
            t,
            error=InvalidReport,
        )
        require(
            np.isnan(t) | ((t >= SHORTEST) & (t <= LONGEST)),
            f"batch processing time must be from {SHORTEST:g} to {LONGEST:g} s",
            t,
            error=InvalidReport,
        )
        for name in ("cpu", "memory"):
            share = getattr(self, name)
            require(
                (share >= 0) & (share <= 1),
                f"usage {name} must be a fraction from 0 to 1",
                share,
                error=InvalidReport,
            )
        used = self.device_memory
        require(
            np.isnan(used) | ((used >= 0) & (used <= 1)),
            "usage device_memory must be a fraction from 0 to 1 or NaN",
            used,
            error=InvalidReport,
        )


def _column(values: Sequence[float | None]) -> Floats:
    return as_floats([np.nan if value is None else value for value in values])


def _caps(values: Sequence[int | None]) -> Ints | None:
    """Return the caps of all workers, or None if none has one."""
    if all(value is None for value in values):
        return None
    return as_ints([UNLIMITED if value is None else value for value in values])


def _measured(rows: Sequence[Report]) -> Ints | None:
    """Return the iteration of each worker's time, or None if none is measured late."""
    if all(row.measured is None or row.measured == row.iteration - 1 for row in rows):
        return None
    return as_ints([row.iteration - 1 if row.measured is None else row.measured for row in rows])
