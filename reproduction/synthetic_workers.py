"""The workers simulated to time a manager: c5.2xlarge instances that train ResNet-32."""

from __future__ import annotations

import numpy as np

from evenstep.core import Floats, Ints, Usage
from evenstep.simulator.clusters.scenarios import CPU_KINDS, CPU_SAMPLES

SAMPLES = CPU_SAMPLES
"""Of a worker in an iteration, on average: X is this for each."""
SPEED = {kind: speed for kind, _, speed in CPU_KINDS}["c5.2xlarge"]
"""Samples per second, assumed; the mean over workers."""
ITERATION = SAMPLES / SPEED
"""Seconds of an iteration, so assumed too."""
USAGE = Usage(0.9, 0.5)
_SPREAD, _NOISE = 0.4, 0.05
"""Of the logarithms of speeds: from worker to worker, and from iteration to iteration."""


def draw_speeds(num_workers: int, rng: np.random.Generator) -> Floats:
    """Return how fast each worker is.

    >>> float(round(draw_speeds(32, np.random.default_rng(0)).mean(), 6))
    90.0
    """
    factors = np.exp(_SPREAD * rng.standard_normal(num_workers))
    speeds: Floats = SPEED * factors / factors.mean()
    return speeds


def draw_times(sizes: Ints, speeds: Floats, rng: np.random.Generator) -> Floats:
    """Return how long workers of these speeds took for their batches."""
    times: Floats = sizes / speeds * np.exp(_NOISE * rng.standard_normal(len(sizes)))
    return times
