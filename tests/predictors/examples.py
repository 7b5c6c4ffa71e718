"""Workers whose speed follows the CPU share, and a way to teach predictors about them."""

from typing import Any

import numpy as np

from evenstep.core import TrainNow

QUICK: dict[str, Any] = {"start": 60, "retrain": 40, "history": 120}
"""Settings with which a training comes soon and takes little."""


def follow_cpu(num_iterations, full_speeds, seed=0, noise=0.02):
    """Return speeds ``full speed * c * noise`` and the usage, each (iteration, worker)."""
    rng = np.random.default_rng(seed)
    shape = (num_iterations, len(full_speeds))
    cpu, memory = rng.uniform(0.3, 1.0, (2, *shape))
    return np.array(full_speeds) * cpu * np.exp(noise * rng.standard_normal(shape)), cpu, memory


def teach(predictor, speeds, cpu, memory, trainer=None):
    """Run iterations as a planner would; return the predictions."""
    trainer = trainer or TrainNow()
    predictions = []
    for now in zip(speeds, cpu, memory, strict=True):
        predictions.append(predictor.predict(*now[1:]))
        predictor.observe(*now)
        trainer.poll(predictor)
    assert trainer.failure is None
    return np.array(predictions)


def observe_all(predictor, speeds, cpu, memory):
    """Let a predictor observe iterations without training anything."""
    for observation in zip(speeds, cpu, memory, strict=True):
        predictor.observe(*observation)


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    for key in one:
        np.testing.assert_array_equal(one[key], other[key], err_msg=key)
