"""`arima`: the statistical predictor that the paper compares NARX with (Sec. 5.4).

statsmodels fits the coefficients, which takes a tenth of a second per worker, off the decision
path. The result is a linear state space model, which this predictor then updates, one observation
at a time and all workers in one call.

y = level + Z s        s' = T s + w,  w ~ N(0, Q)

y is observed without further noise; `design` is Z, the same for all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
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
    require_whole,
    to_arrays,
)
from evenstep.errors import InvalidSetting
from evenstep.predictors.record import SPEED, Record, keep_near, outer_arrays

LARGEST_ORDER = 10
"""Largest p, d or q of a model."""
_LEAST_VARIANCE = 1e-8
"""Least variance of the innovations, to start the fit of a constant series from."""


@dataclass(frozen=True, eq=False)
class _Models:
    """The models, one row per worker."""

    fitted: Bools
    parameters: Floats
    """Coefficients and variance of the innovations, from which the next fit starts."""
    spaces: StateSpaces


@dataclass(frozen=True, eq=False)
class _Fit:
    """The result of a training."""

    began: int
    """Iterations observed when the training began."""
    numbers: Ints
    """The workers of the rows of `models`, by their numbers in the roster."""
    count: Ints
    """Number of observations in each model."""
    models: _Models


class Arima:
    """ARIMA models of order (p, d, q) of the logarithm of each worker's speed, EMA before.

    A worker's model is fitted once it has `start` observations, then every `retrain` iterations,
    to its last `history` observations.
    """

    def __init__(
        self,
        num_workers: int,
        order: Sequence[float] = (2, 2, 1),
        start: int = 500,
        retrain: int = 500,
        history: int = 500,
    ) -> None:
        require_whole("start of arima", start)
        self.order = _as_order(order)
        least = 4 * sum(self.order) + 4
        if start < least:
            raise InvalidSetting(
                f"start of arima must be >= {least} observations for order {self.order}, "
                f"got {start}"
            )
        model = _make_model(np.zeros(least), self.order)
        self._num_parameters, self._num_states = int(model.k_params), int(model.k_states)
        self._design: Floats = np.array(model.ssm["design"][0], dtype=np.float64)
        self._record = Record(num_workers, start, retrain, history)
        self._models = self._fresh_models(num_workers)

    @property
    def num_workers(self) -> int:
        return self._record.num_workers

    @property
    def trained(self) -> Bools:
        """Which workers have a model."""
        return self._models.fitted.copy()

    def predict(self, cpu: Floats, memory: Floats) -> Floats:
        speeds, fitted = self._record.ema.predict(cpu, memory), self._models.fitted
        if not fitted.any():
            return speeds
        return np.where(
            fitted, keep_near(speeds, self._models.spaces.expected(self._design)), speeds
        )

    def observe(self, speeds: Floats, cpu: Floats, memory: Floats) -> None:
        self._record.observe(speeds, cpu, memory)
        self._follow(1, np.isfinite(speeds))

    def remap(self, keep: Ints) -> None:
        self._record.remap(keep)
        self._models = remap_rows(self._models, self._fresh_models(len(keep)), keep)

    def state(self) -> Arrays:
        return outer_arrays(record=self._record.state(), models=to_arrays(self._models))

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        fresh = self._fresh_models(self.num_workers)
        models = from_arrays(fresh, inner_arrays(state, "models"))
        self._record.restore(inner_arrays(state, "record"))
        self._models = models

    def training(self) -> Callable[[], object] | None:
        rows = np.flatnonzero(self._record.begin_training())
        if not rows.size:
            return None
        history = self._record.history
        return partial(
            _fit,
            self.order,
            self._record.schedule.iterations,
            self._record.roster.numbers[rows],
            history.count[rows],
            history.latest(history.size)[rows, :, SPEED],
            remap_rows(self._models, self._fresh_models(len(rows)), rows),
        )

    def adopt(self, result: object) -> None:
        assert isinstance(result, _Fit)
        rows = self._record.roster.rows_in(result.numbers)
        if not (rows >= 0).any():
            return
        self._record.schedule = self._record.schedule.trained(result.began)
        self._models = remap_rows(result.models, self._models, rows)
        behind = np.where(rows >= 0, self._record.history.count - result.count[rows], 0)
        for ago in range(int(behind.max()), 0, -1):
            self._follow(ago, behind >= ago)

    def _follow(self, ago: int, new: Bools) -> None:
        """Update the models of some workers with the observation `ago` observations back."""
        moves = new & self._models.fitted
        if moves.any():
            values = self._record.history.latest(ago)[:, 0, SPEED]
            spaces = self._models.spaces.followed(self._design, values, moves)
            models = replace(self._models, spaces=spaces)
            keep = np.where(spaces.sound, np.arange(self.num_workers), -1)
            self._models = remap_rows(models, self._fresh_models(self.num_workers), keep)

    def _fresh_models(self, num_workers: int) -> _Models:
        return _Models(
            fitted=np.zeros(num_workers, dtype=bool),
            parameters=np.zeros((num_workers, self._num_parameters)),
            spaces=StateSpaces.zeros(num_workers, self._num_states),
        )


def _fit(
    order: tuple[int, int, int],
    began: int,
    numbers: Ints,
    count: Ints,
    past: Floats,
    models: _Models,
) -> _Fit:
    """Fit the model of each worker to its past log speeds, starting from its own or another's."""
    models, start = deepcopy(models), None
    for row, log_speeds in enumerate(past):
        if models.fitted[row]:
            start = models.parameters[row].copy()
        if _fit_row(models, row, log_speeds[np.isfinite(log_speeds)], order, start):
            start = models.parameters[row].copy()
    return _Fit(began, numbers, count, models)


def _fit_row(
    models: _Models, row: int, log_speeds: Floats, order: tuple[int, int, int], start: Floats | None
) -> bool:
    """Fit one model in place; returns False, and leaves it as it was, if it cannot be fitted."""
    level = log_speeds.mean()
    model = _make_model(log_speeds - level, order)
    if start is None:
        start = _first_parameters(log_speeds, order)
    try:
        # A fit that does not converge within the usual number of steps is still usable.
        quietly = {"disp": 0, "warn_convergence": False}
        with np.errstate(all="ignore"):
            found = model.fit(start_params=start, cov_type="none", method_kwargs=quietly)
    except (ValueError, np.linalg.LinAlgError):
        return False
    filtered = found.filter_results
    selection = filtered.selection[:, :, 0]
    values = {
        "level": level,
        "transition": filtered.transition[:, :, 0],
        "disturbance": selection @ filtered.state_cov[:, :, 0] @ selection.T,
        "state": filtered.predicted_state[:, -1],
        "cov": filtered.predicted_state_cov[:, :, -1],
    }
    if not all(np.isfinite(value).all() for value in (found.params, *values.values())):
        return False
    for name, value in values.items():
        getattr(models.spaces, name)[row] = value
    models.parameters[row], models.fitted[row] = found.params, True
    return True


def _first_parameters(log_speeds: Floats, order: tuple[int, int, int]) -> Floats:
    """Return coefficients of 0 and the variance of the differences."""
    p, d, q = order
    variance = np.diff(log_speeds, n=d).var()
    return np.concatenate([np.zeros(p + q), [max(variance, _LEAST_VARIANCE)]])


def _as_order(order: Sequence[float]) -> tuple[int, int, int]:
    if len(order) != 3 or not all(part >= 0 and part == int(part) for part in order):
        raise InvalidSetting(f"order of arima must be three whole numbers >= 0, got {order}")
    p, d, q = (int(part) for part in order)
    if max(p, d, q) > LARGEST_ORDER:
        raise InvalidSetting(f"orders of arima must be at most {LARGEST_ORDER}, got {order}")
    return p, d, q


def _make_model(series: Floats, order: tuple[int, int, int]) -> Any:
    try:
        from statsmodels.tsa.arima.model import ARIMA
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "predictor arima needs statsmodels: pip install 'evenstep[arima]'", name=error.name
        ) from error
    return ARIMA(series, order=order, trend="n")


_LEAST_STATE_VARIANCE = 1e-12


@dataclass(frozen=True, eq=False)
class StateSpaces:
    """One model per worker; states and covariances are those predicted for the next value."""

    level: Floats
    transition: Floats
    """T, (worker, state, state)."""
    disturbance: Floats
    """Q, (worker, state, state)."""
    state: Floats
    """s, (worker, state)."""
    cov: Floats
    """The covariance of s, (worker, state, state)."""

    @classmethod
    def zeros(cls, num_workers: int, num_states: int) -> StateSpaces:
        transition, disturbance, cov = np.zeros((3, num_workers, num_states, num_states))
        state = np.zeros((num_workers, num_states))
        return cls(np.zeros(num_workers), transition, disturbance, state, cov)

    def expected(self, design: Floats) -> Floats:
        """Return the expectation of the next value."""
        expected: Floats = self.level + self.state @ design
        return expected

    @property
    def sound(self) -> Bools:
        """Which models have finite states: those of an unstable model overflow eventually."""
        numbers = np.concatenate([self.state[:, None], self.cov], axis=1)
        sound: Bools = np.isfinite(numbers).all(axis=(1, 2))
        return sound

    @np.errstate(over="ignore", invalid="ignore")
    def followed(self, design: Floats, values: Floats, new: Bools) -> StateSpaces:
        """Return the models after one more value, for the workers that have a new one.

        F = Z P Z'                    K = T P Z' / F
        s' = T s + K (y - Z s)        P' = T P T' - K F K' + Q
        """
        T, P = self.transition, self.cov
        P_design = P @ design
        F = np.maximum(P_design @ design, _LEAST_STATE_VARIANCE)
        innovation = np.where(new, values - self.expected(design), 0.0)
        gain = _times(T, P_design) / F[:, None]
        state = _times(T, self.state) + gain * innovation[:, None]
        taken = gain[:, :, None] * (F[:, None] * gain)[:, None, :]
        cov = T @ P @ T.swapaxes(1, 2) - taken + self.disturbance
        return replace(
            self,
            state=np.where(new[:, None], state, self.state),
            cov=np.where(new[:, None, None], cov, P),
        )


def _times(matrices: Floats, vectors: Floats) -> Floats:
    product: Floats = (matrices @ vectors[:, :, None])[:, :, 0]
    return product
