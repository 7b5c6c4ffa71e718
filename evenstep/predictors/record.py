"""What every trained predictor keeps besides its models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core.arrays import Bools, Floats, Ints, require
from evenstep.core.rows import Arrays, from_arrays, inner_arrays, to_arrays
from evenstep.errors import InvalidSetting, StateFileError
from evenstep.predictors.ema import Ema
from evenstep.predictors.history import History
from evenstep.predictors.roster import Roster
from evenstep.predictors.schedule import Schedule


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
