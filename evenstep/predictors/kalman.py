"""`kalman`: an online regression of the speed on the driving resources.

Per worker, ``log v = phi(c, m) . theta``, with theta tracked by a Kalman filter: the CPU share
enters through its logarithm and its square, a lack of memory through three hinges. A CUSUM test
frees the intercept when the speed changes for a reason that neither c nor m shows. The predictor
works from the second iteration on; NARX needs hundreds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import Arrays, Floats, Ints, from_arrays, remap_rows, require, to_arrays
from evenstep.errors import StateFileError
from evenstep.predictors.ema import fill_unseen

_HINGES = np.array([0.1, 0.2, 0.3])
"""Free memory below each of these may slow a worker down."""
_NUM_FEATURES = 3 + len(_HINGES)
_FIRST_ERROR = 0.05
_FIRST_WEIGHT_VAR = 0.25
_DRIFT_VAR = np.array([0.01**2] + [1e-8] * (_NUM_FEATURES - 1))
_OUTLIER = 3.0
_OUTLIER_WEIGHT = 0.1
_NOISE_AFTER = 5
_NOISE_RATE = 0.03
_LEAST_NOISE_VAR, _MOST_NOISE_VAR = 1e-4, 0.09
_SLACK, _ALARM = 1.0, 6.0
_JUMP_VAR = 0.15**2
_LEAST_CPU = 0.01


@dataclass(frozen=True, eq=False)
class _State:
    count: Ints
    """Observations so far."""
    theta: Floats
    """The weights, (worker, feature)."""
    cov: Floats
    """Their covariance, (worker, feature, feature)."""
    noise_var: Floats
    """Variance of log v around the regression."""
    rise: Floats
    fall: Floats
    """Evidence (CUSUM) of an unexplained rise or fall of the speed."""


def _fresh(num_workers: int) -> _State:
    zeros = np.zeros(num_workers)
    variances = np.array([_FIRST_ERROR**2] + [_FIRST_WEIGHT_VAR] * (_NUM_FEATURES - 1))
    return _State(
        count=np.zeros(num_workers, dtype=np.int64),
        theta=np.zeros((num_workers, _NUM_FEATURES)),
        cov=np.tile(np.diag(variances), (num_workers, 1, 1)),
        noise_var=np.full(num_workers, _FIRST_ERROR**2),
        rise=zeros,
        fall=zeros,
    )


class Kalman:
    """Predicts ``exp(phi . theta)`` for every worker in one call."""

    def __init__(self, num_workers: int) -> None:
        self._state = _fresh(num_workers)

    @property
    def num_workers(self) -> int:
        return len(self._state.count)

    def predict(self, cpu: Floats, memory: Floats) -> Floats:
        log_speeds = _dot(_features(cpu, memory), self._state.theta)
        return fill_unseen(np.exp(np.clip(log_speeds, -700, 700)), self._state.count > 0)

    def observe(self, speeds: Floats, cpu: Floats, memory: Floats) -> None:
        new = np.isfinite(speeds)
        if not new.any():
            return
        old, seen = self._state, self._state.count > 0
        phi = _features(cpu, memory)
        y = np.log(np.where(new, speeds, 1.0))
        state = _follow(old, phi, y)
        if not seen.all():
            state = _choose(seen, state, _start(old, phi, y))
        self._state = state if new.all() else _choose(new, state, old)

    def remap(self, keep: Ints) -> None:
        self._state = remap_rows(self._state, _fresh(len(keep)), keep)

    def state(self) -> Arrays:
        return to_arrays(self._state)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        saved = from_arrays(_fresh(self.num_workers), state)
        for what, values in (
            ("noise variance", saved.noise_var),
            ("least eigenvalue of the covariance", np.linalg.eigvalsh(saved.cov)[:, 0]),
        ):
            require(values > 0, f"saved {what} must be > 0", values, error=StateFileError)
        self._state = saved


def _features(cpu: Floats, memory: Floats) -> Floats:
    """Return phi = (1, log c, (log c)^2, hinges of m), (worker, feature)."""
    phi = np.ones((len(cpu), _NUM_FEATURES))
    log_cpu = np.log(np.maximum(cpu, _LEAST_CPU))
    phi[:, 1] = log_cpu
    phi[:, 2] = log_cpu * log_cpu
    phi[:, 3:] = np.minimum(np.maximum((_HINGES - memory[:, None]) / _HINGES, 0), 1)
    return phi


def _start(old: _State, phi: Floats, y: Floats) -> _State:
    """Start at the first observation with a speed in proportion to the CPU share."""
    fresh = _fresh(len(y))
    theta = np.zeros_like(phi)
    theta[:, 0] = y - phi[:, 1]
    theta[:, 1] = 1.0
    return _State(old.count + 1, theta, fresh.cov, fresh.noise_var, fresh.rise, fresh.fall)


def _follow(old: _State, phi: Floats, y: Floats) -> _State:
    cov = old.cov.copy()
    diagonal = np.arange(_NUM_FEATURES)
    cov[:, diagonal, diagonal] += _DRIFT_VAR
    cov_phi = np.matmul(cov, phi[:, :, None])[:, :, 0]
    explained = _dot(phi, cov_phi)
    spread = explained + old.noise_var
    deviation = np.sqrt(spread)
    residual = y - _dot(phi, old.theta)
    z = residual / deviation
    bounded = np.clip(z, -_OUTLIER, _OUTLIER)
    weight = np.where(np.abs(z) > _OUTLIER, _OUTLIER_WEIGHT, 1.0)

    gain = cov_phi / spread[:, None]
    theta = old.theta + (weight * bounded * deviation)[:, None] * gain
    cov -= (weight[:, None] * gain)[:, :, None] * cov_phi[:, None, :]

    surprise = np.maximum(np.minimum(residual**2, 6 * spread) - explained, 0)
    noise_var = old.noise_var + _NOISE_RATE * (surprise - old.noise_var)
    noise_var = np.clip(noise_var, _LEAST_NOISE_VAR, _MOST_NOISE_VAR)
    noise_var = np.where(old.count >= _NOISE_AFTER, noise_var, old.noise_var)

    rise = np.maximum(0.0, old.rise + bounded - _SLACK)
    fall = np.maximum(0.0, old.fall - bounded - _SLACK)
    alarm = (rise >= _ALARM) | (fall >= _ALARM)
    cov[:, 0, 0] += np.where(alarm, _JUMP_VAR, 0.0)
    return _State(
        old.count + 1,
        theta,
        cov,
        noise_var,
        np.where(alarm, 0.0, rise),
        np.where(alarm, 0.0, fall),
    )


def _dot(a: Floats, b: Floats) -> Floats:
    product: Floats = np.einsum("ij,ij->i", a, b)
    return product


def _choose(which: NDArray[np.bool_], new: _State, old: _State) -> _State:
    return remap_rows(new, old, np.where(which, np.arange(len(which)), -1))
