"""What every trained predictor keeps besides its models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import Bools, Floats, Ints, as_floats, require
from evenstep.core.rows import Arrays, from_arrays, inner_arrays, remap_rows, to_arrays
from evenstep.errors import InvalidSetting, StateFileError
from evenstep.predictors.ema import Ema


class Record:
    """The history to train on, EMA until then, when to train, and who is who.

    A training is due once a worker has `start` observations, then every `retrain` iterations.
    """

    def __init__(self, num_workers: int, start: int, retrain: int, history: int) -> None:
        if not 1 <= start <= history:
            raise InvalidSetting(
                f"start must be >= 1 and <= history ({history}) observations, got {start}"
            )
        if retrain < 1:
            raise InvalidSetting(f"retrain must be >= 1 iterations, got {retrain}")
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

    def hand_out(self) -> Bools:
        """Return whose models a training that is due is for: nobody's if none is."""
        enough: Bools = self.history.count >= self.start
        if not enough.any() or not self.schedule.is_due(self.retrain):
            return np.zeros_like(enough)
        self.schedule = self.schedule.handed_out()
        return enough

    def remap(self, keep: Ints) -> None:
        self.roster.remap(keep)
        self.ema.remap(keep)
        self.history = self.history.remapped(keep)

    def state(self) -> Arrays:
        parts = {
            "ema": self.ema.state(),
            "history": to_arrays(self.history),
            "schedule": to_arrays(self.schedule),
        }
        return {f"{part}.{name}": its[name] for part, its in parts.items() for name in its}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up a saved state, or raise StateFileError and change nothing.

        A training that is under way knows nothing of it: its result will be nobody's.
        """
        empty = History.of(self.num_workers, self.history.size)
        history = from_arrays(empty, inner_arrays(state, "history"))
        require(history.count >= 0, "saved count must be >= 0", history.count, error=StateFileError)
        schedule = from_arrays(Schedule(), inner_arrays(state, "schedule"))
        self.ema.restore(inner_arrays(state, "ema"))
        self.history, self.schedule = history, schedule.resumed()
        self.roster.renew()


class Roster:
    """Numbers workers for life, so that the rows of a training find their workers again.

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
        """Give everybody a new number: whatever is under way is about others."""
        self.numbers = self._new(len(self.numbers))

    def rows_in(self, numbers: Ints) -> Ints:
        """Return the row of each worker in an array of `numbers`, -1 where it is not in there."""
        order = np.argsort(numbers)
        row = order[np.searchsorted(numbers, self.numbers, sorter=order).clip(max=len(order) - 1)]
        return np.where(numbers[row] == self.numbers, row, -1)

    def _new(self, num_workers: int) -> Ints:
        first, self._next = self._next, self._next + num_workers
        return np.arange(first, self._next)


@dataclass(frozen=True)
class Schedule:
    """The first training is due when there is enough to learn from, then one every so often.

    A training is handed out once: if it fails, the next one comes when that would be due.

    >>> schedule, due = Schedule(), []
    >>> for iteration in range(300):
    ...     if schedule.is_due(every=100):
    ...         due.append(iteration)
    ...         schedule = schedule.handed_out()
    ...     schedule = schedule.ticked()
    >>> due
    [0, 100, 200]
    """

    iterations: int = 0
    """Iterations observed so far."""
    handed_out_at: int = -1
    """How many there were when a training was last handed out; -1 before the first one."""
    trained_at: int = -1
    """The same for the training whose models are in use."""

    def is_due(self, every: int) -> bool:
        return self.handed_out_at < 0 or self.iterations - self.handed_out_at >= every

    def ticked(self) -> Schedule:
        """Count an iteration."""
        return replace(self, iterations=self.iterations + 1)

    def handed_out(self) -> Schedule:
        """Note that a training begins with what has been observed by now."""
        return replace(self, handed_out_at=self.iterations)

    def trained(self, began: int) -> Schedule:
        """Note that the models of a training are in use that began after so many iterations."""
        return replace(self, trained_at=began)

    def resumed(self) -> Schedule:
        """Forget a training whose result was lost, as it is when a job starts again."""
        return replace(self, handed_out_at=self.trained_at)


SPEED, CPU, MEMORY = range(3)
"""The series of a history, in logarithms: what slows a worker down does so by a factor."""
_LEAST_USAGE = 0.01


def log_usage(cpu: Floats, memory: Floats) -> tuple[Floats, Floats]:
    """Return log c and log m, finite also where nothing is left."""
    return np.log(np.maximum(cpu, _LEAST_USAGE)), np.log(np.maximum(memory, _LEAST_USAGE))


@dataclass(frozen=True, eq=False)
class History:
    """The last observations of each worker: a ring, written in place.

    An iteration in which a worker has no observation leaves no gap: the value before is the last
    one observed.
    """

    past: NDArray[np.float32]
    """(worker, place, series), NaN where nothing has been observed yet."""
    count: Ints
    """Observations so far; the next one goes to place ``count % size``."""

    @classmethod
    def of(cls, num_workers: int, size: int) -> History:
        """Make the empty history of `num_workers` workers that holds `size` observations each."""
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
        """Add the speeds of an iteration with the usage at its start; NaN says there is none."""
        new = np.flatnonzero(np.isfinite(speeds))
        log_cpu, log_memory = log_usage(cpu[new], memory[new])
        place = self.count[new] % self.size
        self.past[new, place] = np.column_stack((np.log(speeds[new]), log_cpu, log_memory))
        self.count[new] += 1

    def latest(self, num: int) -> Floats:
        """Return a copy of each worker's last `num` observations, oldest first."""
        places = (self.count[:, None] + np.arange(-num, 0)) % self.size
        rows = np.arange(len(self.count))[:, None]
        return as_floats(self.past[rows, places])


_FAR = np.log(4.0)


def keep_near(speeds: Floats, log_speeds: Floats) -> Floats:
    """Return modelled log speeds as speeds that are at most a factor of 4 from safe ones.

    What is further away is extrapolation; what is not even a number becomes the safe speed.

    >>> keep_near(np.array([10.0, 10.0, 10.0]), np.log([11.0, 1000.0, np.nan]))
    array([11., 40., 10.])
    """
    middle = np.log(speeds)
    modelled = np.exp(np.clip(log_speeds, middle - _FAR, middle + _FAR))
    return np.where(np.isnan(modelled), speeds, modelled)
