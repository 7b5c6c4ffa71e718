"""The record of a trained predictor: all of its state except the models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import (
    Arrays,
    Bools,
    Floats,
    Ints,
    as_floats,
    from_arrays,
    inner_arrays,
    remap_rows,
    require,
    require_whole,
    to_arrays,
)
from evenstep.errors import InvalidSetting, StateFileError
from evenstep.predictors.ema import Ema

LONGEST_HISTORY = 10_000
"""Observations of one worker in the history of a predictor."""
MOST_OBSERVATIONS = 10_000_000
"""Observations of all workers together in the history of a predictor: a quarter of a gigabyte."""


def outer_arrays(**parts: Arrays) -> Arrays:
    """Return the arrays of all parts as one state; `inner_arrays` returns those of a part.

    >>> outer_arrays(ema={"mean": np.ones(1)})
    {'ema.mean': array([1.])}
    """
    return {f"{part}.{name}": array for part, its in parts.items() for name, array in its.items()}


class Record:
    """The history to train on, EMA until then, the schedule of trainings, and the roster.

    A training is due once a worker has `start` observations, then every `retrain` iterations.
    """

    def __init__(self, num_workers: int, start: int, retrain: int, history: int) -> None:
        require_whole("history", history, most=LONGEST_HISTORY)
        require_whole("retrain", retrain)
        if num_workers * history > MOST_OBSERVATIONS:
            raise InvalidSetting(
                f"history must keep at most {MOST_OBSERVATIONS:,} observations of all workers, "
                f"got {history} of each of {num_workers}"
            )
        if not 1 <= start <= history:
            raise InvalidSetting(
                f"start must be >= 1 and <= history ({history}) observations, got {start}"
            )
        self.start, self.retrain = start, retrain
        self.ema = Ema(num_workers)
        self.history = History.of(num_workers, history)
        self.schedule = Schedule()
        self.roster = Roster(num_workers)

    @property
    def num_workers(self) -> int:
        return self.ema.num_workers

    def observe(self, speeds: Floats, cpu: Floats, memory: Floats) -> None:
        self.schedule = self.schedule.ticked()
        self.ema.observe(speeds, cpu, memory)
        self.history.add(speeds, cpu, memory)

    def begin_training(self) -> Bools:
        """Return the workers whose models to train now, none if no training is due."""
        enough: Bools = self.history.count >= self.start
        if not enough.any() or not self.schedule.is_due(self.retrain):
            return np.zeros_like(enough)
        self.schedule = self.schedule.started()
        return enough

    def remap(self, keep: Ints) -> None:
        self.roster.remap(keep)
        self.ema.remap(keep)
        self.history = self.history.remapped(keep)

    def state(self) -> Arrays:
        return outer_arrays(
            ema=self.ema.state(),
            history=to_arrays(self.history),
            schedule=to_arrays(self.schedule),
        )

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a saved state, or raise StateFileError and change nothing.

        The result of a training that is running now will be ignored.
        """
        empty = History.of(self.num_workers, self.history.size)
        history = from_arrays(empty, inner_arrays(state, "history"))
        require(history.count >= 0, "saved count must be >= 0", history.count, error=StateFileError)
        schedule = from_arrays(Schedule(), inner_arrays(state, "schedule"))
        self.ema.restore(inner_arrays(state, "ema"))
        self.history, self.schedule = history, schedule.resumed()
        self.roster.renew()


class Roster:
    """Gives each worker a permanent number, to match the rows of a training with workers.

    >>> roster = Roster(3)
    >>> before = roster.numbers
    >>> roster.remap(np.array([2, -1, 0]))
    >>> roster.rows_in(before)
    array([ 2, -1,  0])
    """

    def __init__(self, num_workers: int) -> None:
        self._next = 0
        self.numbers = self._new(num_workers)

    def remap(self, keep: Ints) -> None:
        self.numbers = remap_rows(self.numbers, self._new(len(keep)), keep)

    def renew(self) -> None:
        """Give every worker a new number, so that running trainings match none."""
        self.numbers = self._new(len(self.numbers))

    def rows_in(self, numbers: Ints) -> Ints:
        """Return the row of each worker in an array of `numbers`, -1 if it is not in it."""
        order = np.argsort(numbers)
        row = order[np.searchsorted(numbers, self.numbers, sorter=order).clip(max=len(order) - 1)]
        return np.where(numbers[row] == self.numbers, row, -1)

    def _new(self, num_workers: int) -> Ints:
        first, self._next = self._next, self._next + num_workers
        return np.arange(first, self._next)


@dataclass(frozen=True)
class Schedule:
    """When to train: a first time with enough observations, then every `every` iterations.

    A training is started once: if it fails, the next one comes at its usual time.

    >>> schedule, due = Schedule(), []
    >>> for iteration in range(300):
    ...     if schedule.is_due(every=100):
    ...         due.append(iteration)
    ...         schedule = schedule.started()
    ...     schedule = schedule.ticked()
    >>> due
    [0, 100, 200]
    """

    iterations: int = 0
    """Iterations observed so far."""
    handed_out_at: int = -1
    """Iterations observed when the last training started; -1 before the first one."""
    trained_at: int = -1
    """The same for the training whose models are in use."""

    def is_due(self, every: int) -> bool:
        return self.handed_out_at < 0 or self.iterations - self.handed_out_at >= every

    def ticked(self) -> Schedule:
        """Count an iteration."""
        return replace(self, iterations=self.iterations + 1)

    def started(self) -> Schedule:
        """Record that a training starts with the observations so far."""
        return replace(self, handed_out_at=self.iterations)

    def trained(self, began: int) -> Schedule:
        """Record that the models of a training that began after `began` iterations are in use."""
        return replace(self, trained_at=began)

    def resumed(self) -> Schedule:
        """Forget a training whose result was lost in a restart of the job."""
        return replace(self, handed_out_at=self.trained_at)


SPEED, CPU, MEMORY = range(3)
"""The series of a history, in logarithms, as slowdowns are factors."""
_LEAST_USAGE = 0.01


def log_usage(cpu: Floats, memory: Floats) -> tuple[Floats, Floats]:
    """Return log c and log m, finite even for c = 0 and m = 0."""
    return np.log(np.maximum(cpu, _LEAST_USAGE)), np.log(np.maximum(memory, _LEAST_USAGE))


@dataclass(frozen=True, eq=False)
class History:
    """The last observations of each worker: a ring buffer, written in place.

    An iteration without an observation of a worker leaves no gap in its series.
    """

    past: NDArray[np.float32]
    """(worker, position, series), NaN before the first observations."""
    count: Ints
    """Observations so far; the next one goes to position ``count % size``."""

    @classmethod
    def of(cls, num_workers: int, size: int) -> History:
        """Make an empty history of `num_workers` workers with room for `size` observations each."""
        if size < 1:
            raise InvalidSetting(f"history must hold >= 1 observations, got {size}")
        past = np.full((num_workers, size, 3), np.nan, dtype=np.float32)
        return cls(past, np.zeros(num_workers, dtype=np.int64))

    @property
    def size(self) -> int:
        return int(self.past.shape[1])

    def remapped(self, keep: Ints) -> History:
        """Return the history for other members; see `remap_rows`."""
        return remap_rows(self, History.of(len(keep), self.size), keep)

    def add(self, speeds: Floats, cpu: Floats, memory: Floats) -> None:
        """Add the speeds of an iteration, NaN if missing, with the usage at its start."""
        new = np.flatnonzero(np.isfinite(speeds))
        log_cpu, log_memory = log_usage(cpu[new], memory[new])
        position = self.count[new] % self.size
        self.past[new, position] = np.column_stack((np.log(speeds[new]), log_cpu, log_memory))
        self.count[new] += 1

    def latest(self, num: int) -> Floats:
        """Return a copy of each worker's last `num` observations, oldest first."""
        positions = (self.count[:, None] + np.arange(-num, 0)) % self.size
        rows = np.arange(len(self.count))[:, None]
        return as_floats(self.past[rows, positions])


_FAR = np.log(4.0)


def keep_near(speeds: Floats, log_speeds: Floats) -> Floats:
    """Return modelled log speeds as speeds that are at most a factor of 4 from safe ones.

    Speeds further away are extrapolations; NaN becomes the safe speed.

    >>> keep_near(np.array([10.0, 10.0, 10.0]), np.log([11.0, 1000.0, np.nan]))
    array([11., 40., 10.])
    """
    middle = np.log(speeds)
    modelled = np.exp(np.clip(log_speeds, middle - _FAR, middle + _FAR))
    return np.where(np.isnan(modelled), speeds, modelled)
