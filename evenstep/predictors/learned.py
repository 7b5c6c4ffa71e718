"""Learned predictors: one small network per worker, trained online from that worker's history.

The common part of `narx`, `rnn` and `lstm`. EMA predicts a worker's speed until there is a model
for it. Trainings run off the decision path: `training` returns the work, on copies of the data, and
`adopt` uses its result.

Models predict speeds relative to their worker's level, so that all workers are alike to them.
A level is a mean over about a hundred observations. If a speed changes for a reason that the
model does not see, its residuals keep one sign; a CUSUM test detects this and restarts the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import (
    Arrays,
    Bools,
    Floats,
    Ints,
    from_arrays,
    inner_arrays,
    remap_rows,
    require,
    require_whole,
    to_arrays,
)
from evenstep.errors import InvalidSetting, StateFileError
from evenstep.predictors.record import (
    CPU,
    MEMORY,
    SPEED,
    Record,
    keep_near,
    log_usage,
    outer_arrays,
)
from evenstep.predictors.reuse import (
    LOOK_BACK,
    Form,
    make_samples,
    relative,
    train_alone,
    train_own,
    train_shared,
)

MOST_PARAMETERS = 1_000_000
"""Parameters of all workers' networks together: eight megabytes."""
_LEAST_START = 30
"""Fewer observations leave none to set aside."""


@dataclass(frozen=True, eq=False)
class _Models:
    """The models, one row per worker."""

    parameters: Floats
    """(worker, parameter): of its own or the shared network."""
    levels: Levels
    own: Bools
    """Whether the model was trained on the worker's own samples."""
    steps: Ints
    """Steps of its last training; 0 before the first one."""


@dataclass(frozen=True, eq=False)
class _Shared:
    """The network that all models start from."""

    parameters: Floats
    known: bool = False


@dataclass(frozen=True, eq=False)
class _Trained:
    """The result of a training."""

    began: int
    """Iterations observed when the training began."""
    numbers: Ints
    """The workers of the rows of `models`, by their numbers in the roster."""
    models: _Models
    shared: _Shared


class Learned:
    """Predicts with one network per worker, of the given form.

    A worker's model is trained once it has `start` observations, then every `retrain` iterations,
    on its last `history` observations; with `reuse`, from a network that all workers share. The
    shared network also serves newcomers, from their third iteration on.
    """

    def __init__(
        self,
        num_workers: int,
        form: Form,
        start: int = 500,
        retrain: int = 250,
        reuse: bool = True,
        history: int = 1000,
        seed: int = 0,
    ) -> None:
        require_whole("start", start, least=_LEAST_START)
        require_whole("seed", seed, least=0)
        together = num_workers * form.network.num_parameters
        if together > MOST_PARAMETERS:
            raise InvalidSetting(
                f"networks of {num_workers} workers must have at most {MOST_PARAMETERS:,} "
                f"parameters together, got {together:,}"
            )
        self.form, self.reuse, self.seed = form, reuse, seed
        self._record = Record(num_workers, start, retrain, history)
        self._shared = _Shared(np.zeros(form.network.num_parameters))
        self._models = self._fresh_models(num_workers)

    @property
    def num_workers(self) -> int:
        return self._record.num_workers

    @property
    def trained(self) -> Bools:
        """Which workers have a model trained on their own samples."""
        return self._models.own.copy()

    @property
    def training_steps(self) -> Ints:
        """Steps of each worker's last training; 0 before the first one."""
        return self._models.steps.copy()

    def predict(self, cpu: Floats, memory: Floats) -> Floats:
        speeds, ready = self._record.ema.predict(cpu, memory), self._ready()
        if not ready.any():
            return speeds
        return np.where(ready, keep_near(speeds, self._log_speeds(cpu, memory)), speeds)

    def observe(self, speeds: Floats, cpu: Floats, memory: Floats) -> None:
        new = np.isfinite(speeds)
        residuals = np.log(np.where(new, speeds, 1.0)) - self._expected(cpu, memory)
        levels = self._models.levels.followed(residuals, new & np.isfinite(residuals))
        self._models = replace(self._models, levels=levels)
        self._record.observe(speeds, cpu, memory)

    def remap(self, keep: Ints) -> None:
        self._record.remap(keep)
        self._models = remap_rows(self._models, self._fresh_models(len(keep)), keep)

    def state(self) -> Arrays:
        return outer_arrays(
            record=self._record.state(),
            models=to_arrays(self._models),
            shared=to_arrays(self._shared),
        )

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        fresh = self._fresh_models(self.num_workers)
        models = from_arrays(fresh, inner_arrays(state, "models"))
        models.levels.check()
        shared = from_arrays(self._shared, inner_arrays(state, "shared"))
        self._record.restore(inner_arrays(state, "record"))
        self._models, self._shared = models, shared

    def training(self) -> Callable[[], object] | None:
        enough = self._record.begin_training()
        if not enough.any():
            return None
        history, began = self._record.history, self._record.schedule.iterations
        usable = history.count > LOOK_BACK
        return partial(
            _train,
            began,
            self._record.roster.numbers[enough],
            self.form,
            history.latest(history.size)[usable],
            enough[usable],
            self._shared,
            self.reuse,
            np.random.default_rng((self.seed, began)),
        )

    def adopt(self, result: object) -> None:
        assert isinstance(result, _Trained)
        rows = self._record.roster.rows_in(result.numbers)
        if not (rows >= 0).any():
            return
        self._record.schedule = self._record.schedule.trained(result.began)
        self._shared = result.shared
        # Workers without a model of their own use the new shared network.
        own, parameters = self._models.own[:, None], self._models.parameters
        others = np.where(own, parameters, self._shared.parameters)
        self._models = remap_rows(result.models, replace(self._models, parameters=others), rows)

    def _ready(self) -> Bools:
        """Return which workers have a model and enough observations to use it."""
        seen = self._record.history.count >= LOOK_BACK
        ready: Bools = seen & (self._models.own | self._shared.known)
        return ready

    def _log_speeds(self, cpu: Floats, memory: Floats) -> Floats:
        """Return the log speeds that the networks predict, which may be NaN."""
        level = self._models.levels.level
        now = np.stack([np.full_like(cpu, np.nan), *log_usage(cpu, memory)], axis=1)
        past = self._record.history.latest(LOOK_BACK)
        window = relative(np.concatenate([past, now[:, None]], axis=1), level)
        outputs = self.form.network.output(self._models.parameters, self.form.inputs(window))
        speeds: Floats = outputs[:, 0] + level
        return speeds

    def _expected(self, cpu: Floats, memory: Floats) -> Floats:
        """Return the log speeds that the residuals are relative to: the models', if any."""
        plain = self._models.levels.level + self.form.effect(*log_usage(cpu, memory))
        ready = self._ready()
        return np.where(ready, self._log_speeds(cpu, memory), plain) if ready.any() else plain

    def _fresh_models(self, num_workers: int) -> _Models:
        return _Models(
            parameters=np.tile(self._shared.parameters, (num_workers, 1)),
            levels=Levels.unknown(num_workers),
            own=np.zeros(num_workers, dtype=bool),
            steps=np.zeros(num_workers, dtype=np.int64),
        )


def _train(
    began: int,
    numbers: Ints,
    form: Form,
    past: Floats,
    enough: Bools,
    shared: _Shared,
    reuse: bool,
    rng: np.random.Generator,
) -> _Trained:
    """Train the models of the workers with enough observations; with reuse, learn from all.

    `past` and `enough` have a row for every worker with a sample, `numbers` one for every worker
    with enough of them.
    """
    effect = form.effect(past[:, :, CPU], past[:, :, MEMORY])
    level = np.nanmedian(past[:, :, SPEED] - effect, axis=1)
    samples = make_samples(form, past, level)
    its = samples.of(np.flatnonzero(enough))
    if reuse:
        known = shared.parameters if shared.known else None
        shared = _Shared(train_shared(form.network, samples, known, rng), known=True)
        fitted = train_own(form.network, its, np.tile(shared.parameters, (len(numbers), 1)))
    else:
        fitted = train_alone(form.network, its, rng)
    own = np.ones(len(numbers), dtype=bool)
    levels = Levels.found(level[enough], np.sqrt(fitted.errors))
    models = _Models(fitted.parameters, levels, own, fitted.steps)
    return _Trained(began, numbers, models, shared)


_SPAN = 100
_OUTLIER = 3.0
_SLACK, _ALARM = 1.0, 6.0
_FIRST_NOISE = 0.1
_LEAST_NOISE = 0.03


@dataclass(frozen=True, eq=False)
class Levels:
    """The levels of all workers, in log speed."""

    level: Floats
    age: Ints
    """Number of observations in the mean, at most `_SPAN`."""
    noise: Floats
    """The usual size of a residual."""
    rise: Floats
    fall: Floats
    """Evidence (CUSUM) of an unexplained rise or fall of the speed."""

    @classmethod
    def unknown(cls, num_workers: int) -> Levels:
        zeros = np.zeros(num_workers)
        age = np.zeros(num_workers, dtype=np.int64)
        return cls(zeros, age, np.full(num_workers, _FIRST_NOISE), zeros, zeros)

    @classmethod
    def found(cls, level: Floats, noise: Floats) -> Levels:
        """Return the levels found by a training, with the size of its errors."""
        zeros, age = np.zeros(len(level)), np.full(len(level), _SPAN)
        return cls(level, age, np.maximum(noise, _LEAST_NOISE), zeros, zeros)

    def check(self) -> None:
        """Raise StateFileError if these levels, from a file, are impossible."""
        require(self.age >= 0, "saved age of a level must be >= 0", self.age, error=StateFileError)
        require(self.noise > 0, "saved noise must be > 0", self.noise, error=StateFileError)

    def followed(self, residuals: Floats, new: Bools) -> Levels:
        """Return the levels after `residuals`, for the workers that have a `new` one.

        >>> levels = Levels.unknown(1)
        >>> for speed in (4.0, 4.2, 4.1, 4.1, 5.0, 5.0, 5.0):
        ...     levels = levels.followed(speed - levels.level, np.array([True]))
        >>> levels.level.round(2)
        array([5.])
        """
        z = np.clip(residuals / self.noise, -_OUTLIER, _OUTLIER)
        rise = np.maximum(0.0, self.rise + z - _SLACK)
        fall = np.maximum(0.0, self.fall - z - _SLACK)
        alarm = (rise >= _ALARM) | (fall >= _ALARM)
        age = np.where(alarm, 1, np.minimum(self.age + 1, _SPAN))
        # A new mean takes the first residual in full; later, a spike must not move it much.
        moves = np.where(age == 1, residuals, z * self.noise) / age
        return Levels(
            level=np.where(new, self.level + moves, self.level),
            age=np.where(new, age, self.age),
            noise=self.noise,
            rise=np.where(new, np.where(alarm, 0.0, rise), self.rise),
            fall=np.where(new, np.where(alarm, 0.0, fall), self.fall),
        )
