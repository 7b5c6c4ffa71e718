"""Model reuse: trains a network shared by all workers first, and each worker's own from there.

Five hundred samples of one worker alone are too few for a network of some dozen parameters: it
loses to EMA. The common part of all workers (how speed depends on the driving resources) is learned
from the pooled samples, or comes from another job; each worker's network then learns in a few steps
how its worker differs (Sec. 4 of the paper, "Online NARX Training").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evenstep.core import Floats, Ints
from evenstep.predictors.fitting import Fitted, TrainingSamples, fit, set_aside
from evenstep.predictors.networks import Network
from evenstep.predictors.record import SPEED

LOOK_BACK = 2
"""Number of past values of each series that a network sees."""
_RESTARTS = 4
"""Random starts of a first shared network; the best of them is kept."""
_POOL = 8192
"""Largest number of samples to train a shared network on."""
_SHARED_PATIENCE = 6
_HOLD = 50.0
"""Weight of the penalty that keeps a worker's network near the shared one."""
_OWN_PATIENCE = 2
_TOGETHER = 32
"""Workers whose networks are trained at the same time, which bounds the memory in use."""


@dataclass(frozen=True)
class Form:
    """The kind of a model: a network and its inputs."""

    network: Network
    inputs: Callable[[Floats], Floats]
    """From observations in the order of time, (worker, iteration, series), to the inputs of all
    but the first `LOOK_BACK` iterations, (worker, sample, input). The speed of an iteration is
    the target of its sample, and not among the inputs."""
    effect: Callable[[Floats, Floats], Floats]
    """From log c and log m to the effect on the log speed that is assumed before there is a model.
    The rest of the log speed is the worker's level. Speeds relative to their level are alike on all
    workers, so that models transfer."""


def relative(past: Floats, level: Floats) -> Floats:
    """Return observations with the speeds relative to each worker's level."""
    shifted = past.copy()
    shifted[:, :, SPEED] -= level[:, None]
    return shifted


def make_samples(form: Form, past: Floats, level: Floats) -> TrainingSamples:
    """Return one sample for each observation with `LOOK_BACK` known ones before it."""
    observed = relative(past, level)
    inputs, targets = form.inputs(observed), observed[:, LOOK_BACK:, SPEED]
    known = np.isfinite(targets) & np.isfinite(inputs).all(axis=2)
    aside = np.broadcast_to(set_aside(known.shape[1]), known.shape)
    return TrainingSamples(inputs, targets, known, aside)


def train_shared(
    network: Network, samples: TrainingSamples, start: Floats | None, rng: np.random.Generator
) -> Floats:
    """Return the parameters of a network trained on the pooled samples of all workers.

    It starts from `start`, or else from several random vectors, and keeps the best result.
    """
    starts = [network.init(rng) for _ in range(_RESTARTS)] if start is None else [start]
    worker, sample = np.nonzero(samples.known)
    chosen = rng.permutation(len(worker))[:_POOL]
    worker, sample = worker[chosen], sample[chosen]
    shape = (len(starts), len(chosen))
    pool = TrainingSamples(
        np.broadcast_to(samples.inputs[worker, sample], (*shape, samples.inputs.shape[2])),
        np.broadcast_to(samples.targets[worker, sample], shape),
        np.ones(shape, dtype=bool),
        np.broadcast_to(samples.aside[worker, sample], shape),
    )
    fitted = fit(network, np.array(starts), pool, patience=_SHARED_PATIENCE)
    best: Floats = fitted.parameters[fitted.errors.argmin()]
    return best


def train_own(
    network: Network, samples: TrainingSamples, start: Floats, hold: float = _HOLD
) -> Fitted:
    """Train the network of each worker from its row of `start`, on its own samples."""
    groups = [
        fit(network, start[group], samples.of(group), hold=hold, patience=_OWN_PATIENCE)
        for group in _groups(len(start))
    ]
    return Fitted(
        np.concatenate([group.parameters for group in groups]),
        np.concatenate([group.errors for group in groups]),
        np.concatenate([group.steps for group in groups]),
    )


def train_alone(network: Network, samples: TrainingSamples, rng: np.random.Generator) -> Fitted:
    """Train the network of each worker from scratch, on its own samples, for comparison."""
    start = np.array([network.init(rng) for _ in samples.targets])
    return train_own(network, samples, start, hold=0.0)


def _groups(num_workers: int) -> list[Ints]:
    return np.array_split(np.arange(num_workers), -(-num_workers // _TOGETHER))
