"""Trains networks by least squares: Levenberg-Marquardt for all workers at once.

Each worker has its own parameters, damping and stopping; a step is a few matrix products over
the workers still in training. Two things prevent overfitting to the few samples:

- early stopping: some samples are set aside; the parameters with the least error on them are
  returned, and the training ends when this error has not improved for a few steps;
- hold: a quadratic penalty keeps parameters near the network of other workers or jobs that they
  start from.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from evenstep.core import Bools, Floats, Ints
from evenstep.predictors.networks import Network

_LARGE_ERROR = 0.15
"""Larger errors, in log speed, are spikes and count linearly, not squared (Huber)."""
_FIRST_DAMPING = 1.0
_LEAST_DAMPING, _MOST_DAMPING = 1e-6, 1e10
_AFTER_SUCCESS, _AFTER_FAILURE = 1 / 3, 4.0
"""Factors on the damping after a step that lowered the loss, and after one that did not."""
_LEAST_GAIN = 1e-3
"""Least relative improvement on the samples set aside."""
_STRETCH, _STRETCHES = 5, 5
"""Of five stretches of five samples, one is set aside."""


@dataclass(frozen=True, eq=False)
class TrainingSamples:
    """The samples of the networks of n workers."""

    inputs: Floats
    """(worker, sample, input)."""
    targets: Floats
    """(worker, sample)."""
    known: Bools
    """(worker, sample): False if the worker has no such sample; its values are ignored."""
    aside: Bools
    """(worker, sample): used only to decide when to stop."""

    def of(self, workers: Ints) -> TrainingSamples:
        """Return the samples of some workers."""
        return TrainingSamples(
            self.inputs[workers], self.targets[workers], self.known[workers], self.aside[workers]
        )


@dataclass(frozen=True, eq=False)
class Fitted:
    """The result of a training, one row per worker."""

    parameters: Floats
    """(worker, parameter)."""
    errors: Floats
    """Mean (Huber) error on the samples set aside."""
    steps: Ints
    """Steps of the training."""


def set_aside(num_samples: int) -> Bools:
    """Return which of a worker's samples, in order of time, are set aside.

    Neighbouring samples are alike, so whole stretches are set aside, spread over time, so that
    the newest samples are learned from like the oldest.

    >>> np.flatnonzero(set_aside(50))
    array([20, 21, 22, 23, 24, 45, 46, 47, 48, 49])
    """
    aside: Bools = np.arange(num_samples) // _STRETCH % _STRETCHES == _STRETCHES - 1
    return aside


def fit(
    network: Network,
    start: Floats,
    samples: TrainingSamples,
    hold: float = 0.0,
    max_steps: int = 60,
    patience: int = 3,
) -> Fitted:
    """Train from `start`, (worker, parameter), and return each worker's best parameters.

    A worker's training ends when its error on the samples set aside has not improved for
    `patience` steps in a row.
    """
    objective = _Objective(network, start, _finite(samples), hold)
    state = _begin(objective)
    active = np.arange(len(start))
    for _ in range(max_steps):
        state.put(active, _advance(objective.of(active), state.of(active)))
        active = active[state.stale[active] < patience]
        if not active.size:
            break
    return Fitted(state.best, state.errors, state.steps)


@dataclass(frozen=True, eq=False)
class _Objective:
    """The loss to minimise: ``sum Huber(F(x) - y) + hold |theta - theta_0|^2``."""

    network: Network
    start: Floats
    samples: TrainingSamples
    hold: float

    def of(self, workers: Ints) -> _Objective:
        samples = self.samples.of(workers)
        return _Objective(self.network, self.start[workers], samples, self.hold)

    @property
    def learned(self) -> Bools:
        return self.samples.known & ~self.samples.aside

    @property
    def judged(self) -> Bools:
        return self.samples.known & self.samples.aside

    def residuals(self, parameters: Floats) -> Floats:
        return self.network.output(parameters, self.samples.inputs) - self.samples.targets

    def loss(self, parameters: Floats, residuals: Floats) -> Floats:
        held = self.hold * ((parameters - self.start) ** 2).sum(axis=1)
        loss: Floats = (_huber(residuals) * self.learned).sum(axis=1) + held
        return loss

    def error(self, residuals: Floats) -> Floats:
        """Return the mean error on the samples set aside."""
        errors = _huber(residuals) * self.judged
        error: Floats = errors.sum(axis=1) / np.maximum(self.judged.sum(axis=1), 1)
        return error

    def step(self, parameters: Floats, residuals: Floats, damping: Floats) -> Floats:
        """Return ``theta - (J'WJ + (hold + damping) I)^-1 (J'Wr + hold (theta - theta_0))``."""
        # Huber's loss as weighted least squares: the larger a residual, the less it weighs.
        weights = self.learned * _LARGE_ERROR / np.maximum(np.abs(residuals), _LARGE_ERROR)
        roots = np.sqrt(weights)
        jacobian = self.network.jacobian(parameters, self.samples.inputs)
        jacobian *= roots[:, :, None]
        transposed = jacobian.swapaxes(1, 2)
        gradient = (transposed @ (roots * residuals)[:, :, None])[:, :, 0]
        gradient += self.hold * (parameters - self.start)
        normal = transposed @ jacobian
        diagonal = np.arange(normal.shape[1])
        normal[:, diagonal, diagonal] += (self.hold + damping)[:, None]
        moved: Floats = parameters - np.linalg.solve(normal, gradient[:, :, None])[:, :, 0]
        return moved


@dataclass(frozen=True, eq=False)
class _State:
    """The progress of each worker's training, one row per worker."""

    now: Floats
    residuals: Floats
    loss: Floats
    damping: Floats
    best: Floats
    errors: Floats
    """The error of the best parameters on the samples set aside."""
    stale: Ints
    """Steps since it last improved."""
    steps: Ints

    def of(self, workers: Ints) -> _State:
        return _State(*(getattr(self, f.name)[workers] for f in fields(self)))

    def put(self, workers: Ints, rows: _State) -> None:
        for f in fields(self):
            getattr(self, f.name)[workers] = getattr(rows, f.name)


def _begin(objective: _Objective) -> _State:
    start, num_workers = objective.start, len(objective.start)
    residuals = objective.residuals(start)
    return _State(
        now=start.copy(),
        residuals=residuals,
        loss=objective.loss(start, residuals),
        damping=np.full(num_workers, _FIRST_DAMPING),
        best=start.copy(),
        errors=objective.error(residuals),
        stale=np.zeros(num_workers, dtype=np.int64),
        steps=np.zeros(num_workers, dtype=np.int64),
    )


def _advance(objective: _Objective, old: _State) -> _State:
    """Try a step: keep it for workers whose loss it lowers, and damp the others more."""
    trial = objective.step(old.now, old.residuals, old.damping)
    trial_residuals = objective.residuals(trial)
    trial_loss = objective.loss(trial, trial_residuals)
    lower = trial_loss < old.loss
    now = np.where(lower[:, None], trial, old.now)
    residuals = np.where(lower[:, None], trial_residuals, old.residuals)
    damping = old.damping * np.where(lower, _AFTER_SUCCESS, _AFTER_FAILURE)
    errors = objective.error(residuals)
    better = errors < old.errors * (1 - _LEAST_GAIN)
    return _State(
        now=now,
        residuals=residuals,
        loss=np.where(lower, trial_loss, old.loss),
        damping=np.clip(damping, _LEAST_DAMPING, _MOST_DAMPING),
        best=np.where(better[:, None], now, old.best),
        errors=np.where(better, errors, old.errors),
        stale=np.where(better, 0, old.stale + 1),
        steps=old.steps + 1,
    )


def _huber(residuals: Floats) -> Floats:
    size = np.abs(residuals)
    return np.where(size <= _LARGE_ERROR, residuals**2, _LARGE_ERROR * (2 * size - _LARGE_ERROR))


def _finite(samples: TrainingSamples) -> TrainingSamples:
    """Replace the numbers of unknown samples, which may be NaN, by zeros."""
    inputs = np.where(samples.known[:, :, None], samples.inputs, 0.0)
    targets = np.where(samples.known, samples.targets, 0.0)
    return TrainingSamples(inputs, targets, samples.known, samples.aside)
