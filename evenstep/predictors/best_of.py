"""`best_of`: runs several predictors and uses, for each worker, the one with the least error."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import (
    Arrays,
    Floats,
    Ints,
    Predictor,
    Trainable,
    from_arrays,
    inner_arrays,
    to_arrays,
)
from evenstep.errors import InvalidSetting
from evenstep.predictors.record import outer_arrays

_RATE = 0.02
_LARGEST_ERROR = 0.1
"""Upper bound of squared logarithmic errors, so that one spike does not decide."""


@dataclass(frozen=True, eq=False)
class _Own:
    """The state in addition to that of the candidates, to be saved."""

    errors: Floats
    """e_j, (worker, candidate)."""


class BestOf:
    """Follows ``e_j += .02 (min(log(v^_j / v)^2, .1) - e_j)`` and uses the smallest e_j."""

    def __init__(self, candidates: Mapping[str, Predictor]) -> None:
        if not candidates:
            raise InvalidSetting("best_of needs at least one candidate, got none")
        self.candidates = dict(candidates)
        # Checked once, as `isinstance` takes longer here than most predictions.
        self._trainable = {n: p for n, p in self.candidates.items() if isinstance(p, Trainable)}
        self._errors = np.zeros((self.num_workers, len(self.candidates)))
        self._last: tuple[Floats, Floats, Floats] | None = None

    @property
    def num_workers(self) -> int:
        return next(iter(self.candidates.values())).num_workers

    @property
    def chosen(self) -> list[str]:
        """The candidate in use for each worker."""
        names = list(self.candidates)
        return [names[j] for j in self._errors.argmin(axis=1)]

    def predict(self, cpu: Floats, memory: Floats) -> Floats:
        predictions = self._predictions(cpu, memory)
        best = self._errors.argmin(axis=1)
        chosen: Floats = predictions[np.arange(len(best)), best]
        return chosen

    def observe(self, speeds: Floats, cpu: Floats, memory: Floats) -> None:
        new = np.isfinite(speeds)
        predictions = self._predictions(cpu, memory)
        log_errors = np.log(predictions / np.where(new, speeds, 1.0)[:, None])
        steps = _RATE * (np.minimum(log_errors**2, _LARGEST_ERROR) - self._errors)
        self._errors = self._errors + np.where(new[:, None], steps, 0.0)
        for candidate in self.candidates.values():
            candidate.observe(speeds, cpu, memory)
        self._last = None

    def remap(self, keep: Ints) -> None:
        for candidate in self.candidates.values():
            candidate.remap(keep)
        errors = np.zeros((len(keep), len(self.candidates)))
        errors[keep >= 0] = self._errors[keep[keep >= 0]]
        self._errors = errors
        self._last = None

    def state(self) -> Arrays:
        parts = {name: candidate.state() for name, candidate in self.candidates.items()}
        return to_arrays(_Own(self._errors)) | outer_arrays(**parts)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        own = from_arrays(_Own(np.zeros_like(self._errors)), state)
        # On copies first: a state that is refused must change nothing.
        for candidates in (copy.deepcopy(self.candidates), self.candidates):
            for name, candidate in candidates.items():
                candidate.restore(inner_arrays(state, name))
        self._errors = own.errors
        self._last = None

    def training(self) -> Callable[[], object] | None:
        """Return the training of the first candidate that has one due."""
        for name, candidate in self._trainable.items():
            if (work := candidate.training()) is not None:
                return _Named(name, work)
        return None

    def adopt(self, result: object) -> None:
        assert isinstance(result, tuple)
        name, models = result
        self._trainable[name].adopt(models)
        self._last = None

    def _predictions(self, cpu: Floats, memory: Floats) -> Floats:
        """Return the predictions of all candidates; `observe` needs the last ones again."""
        last = self._last
        if last is None or not (np.array_equal(last[0], cpu) and np.array_equal(last[1], memory)):
            made = np.stack([p.predict(cpu, memory) for p in self.candidates.values()], axis=1)
            self._last = last = (cpu.copy(), memory.copy(), made)
        return last[2]


class _Named:
    """A training that returns the name of its candidate with the result."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        self._name, self._work = name, work

    def __call__(self) -> tuple[str, object]:
        return self._name, self._work()
