"""`rnn` and `lstm`: recurrent networks of the last two speeds.

The paper compares NARX with them (Sec. 5.4). They do not see the driving resources c and m, and
must infer their effect from past speeds.
"""

from __future__ import annotations

import numpy as np

from evenstep.core import Floats
from evenstep.predictors.learned import Learned
from evenstep.predictors.networks import Elman, Lstm, Network
from evenstep.predictors.record import SPEED
from evenstep.predictors.reuse import LOOK_BACK, Form


def make_rnn(
    num_workers: int,
    start: int = 500,
    retrain: int = 250,
    reuse: bool = True,
    history: int = 1000,
    hidden: int = 4,
    seed: int = 0,
) -> Learned:
    """Make plain recurrent networks; the settings are those of `make_narx`."""
    form = _speeds_only(Elman(hidden))
    return Learned(num_workers, form, start, retrain, reuse, history, seed)


def make_lstm(
    num_workers: int,
    start: int = 500,
    retrain: int = 250,
    reuse: bool = True,
    history: int = 1000,
    hidden: int = 3,
    seed: int = 0,
) -> Learned:
    """Make LSTM networks; the settings are those of `make_narx`."""
    form = _speeds_only(Lstm(hidden))
    return Learned(num_workers, form, start, retrain, reuse, history, seed)


def _speeds_only(network: Network) -> Form:
    return Form(network, _inputs, _no_effect)


def _inputs(past: Floats) -> Floats:
    """Return v^{k-2}, v^{k-1} of every k, (worker, k, 2)."""
    num = past.shape[1]
    columns = [past[:, LOOK_BACK - ago : num - ago, SPEED] for ago in range(LOOK_BACK, 0, -1)]
    return np.stack(columns, axis=2)


def _no_effect(log_cpu: Floats, log_memory: Floats) -> Floats:
    return np.zeros_like(log_cpu)
