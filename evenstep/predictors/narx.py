"""`narx`: the paper's predictor, a small network of past speeds and the driving resources.

    v^k = F(v^{k-1}, v^{k-2}, c^k, c^{k-1}, c^{k-2}, m^k, m^{k-1}, m^{k-2})        (Sec. 3.2.2)

Each worker has a network with one hidden layer, trained online after 500 iterations (Sec. 4), and
EMA before. All series are logarithms; speeds are relative to the worker's speed at full CPU.
"""

from __future__ import annotations

import numpy as np

from evenstep.core import Floats
from evenstep.predictors.learned import Learned
from evenstep.predictors.networks import FeedForward
from evenstep.predictors.record import CPU, MEMORY, SPEED
from evenstep.predictors.reuse import LOOK_BACK, Form


def make_narx(
    num_workers: int,
    start: int = 500,
    retrain: int = 250,
    reuse: bool = True,
    history: int = 1000,
    hidden: int = 8,
    seed: int = 0,
) -> Learned:
    """Make NARX models of `num_workers` workers.

    A worker's model is trained once it has `start` observations, then every `retrain` iterations,
    on its last `history` observations; with `reuse`, starting from a network shared by all.

    >>> narx = make_narx(2)
    >>> narx.observe(np.array([60.0, 90.0]), np.ones(2), np.ones(2))
    >>> narx.predict(np.ones(2), np.ones(2))
    array([60., 90.])
    """
    form = Form(FeedForward(num_inputs=8, hidden=hidden), _inputs, _effect)
    return Learned(num_workers, form, start, retrain, reuse, history, seed)


def _inputs(past: Floats) -> Floats:
    """Return v^{k-1}, v^{k-2}, c^k .. c^{k-2}, m^k .. m^{k-2} of every k, (worker, k, 8)."""
    num = past.shape[1]
    columns = [
        past[:, LOOK_BACK - ago : num - ago, series]
        for series in (SPEED, CPU, MEMORY)
        for ago in range(1 if series == SPEED else 0, LOOK_BACK + 1)
    ]
    return np.stack(columns, axis=2)


def _effect(log_cpu: Floats, log_memory: Floats) -> Floats:
    """Return the log speed relative to full CPU, for speeds in proportion to the CPU share."""
    return log_cpu
