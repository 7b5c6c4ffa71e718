"""Batch processing times: a worker's own work, and nothing else."""

from __future__ import annotations

import time

import numpy as np
import pytest

from evenstep.runlog import read
from tests.jax.setup import balanced, cycle, data, losses, net

pytestmark = pytest.mark.distributed

TOTAL = 8
WORK = 0.04
"""Seconds that a fast worker takes."""
ITERATIONS = 9


def beside_a_slow_colleague(log, mean):
    """Train with equal work, and then with one worker ten times as slow."""
    samples = data(TOTAL * ITERATIONS)
    slowness = 1.0

    def fetch(indices):
        time.sleep(WORK * slowness)
        return tuple(array[indices] for array in samples)

    with balanced(TOTAL, bucket=4, policy=cycle((4, 4)), log=log) as balancer:
        loader = balancer.loader(fetch=fetch, num_samples=TOTAL * ITERATIONS)
        value_and_grad = balancer.value_and_grad(losses)
        for factor in (1.0, 10.0):
            slowness = factor if balancer.worker == 1 else 1.0
            for batch in loader:
                if mean:
                    balancer.mean(0.0)
                value_and_grad(net(), *batch)


@pytest.mark.parametrize("mean", [False, True], ids=["plain", "mean before the gradient"])
def test_time_of_a_fast_worker_is_not_that_of_a_slow_colleague(workers, tmp_path, mean):
    path = tmp_path / "run.jsonl"
    workers.run(beside_a_slow_colleague, log=str(path), mean=mean)
    times = read(path).segments[0].times
    # A busy machine may delay some iterations, but not all of them.
    equal, unequal = (
        np.nanquantile(part, 0.2, axis=0) for part in (times[:ITERATIONS], times[ITERATIONS:])
    )
    assert equal[0] >= WORK
    assert unequal[0] < 4 * WORK
    assert unequal[1] >= 10 * WORK


def elsewhere(log):
    """Spend time between iterations, and away from one."""
    with balanced(TOTAL, bucket=4, policy=cycle((4, 4)), warm_up=0, log=log) as balancer:
        value_and_grad = balancer.value_and_grad(losses)
        for batch in balancer.loader(data(TOTAL * 4)):
            with balancer.away():
                time.sleep(0.5)
            value_and_grad(net(), *batch)
            time.sleep(0.5)


def test_what_is_not_of_the_iteration_does_not_count(workers, tmp_path):
    path = tmp_path / "run.jsonl"
    workers.run(elsewhere, log=str(path))
    times = read(path).segments[0].times
    # Of the first iteration no time is reported.
    assert times.shape == (4, 2) and times[1:].min() < 0.25 and times[1:].max() < 0.5
