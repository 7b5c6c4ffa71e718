"""Compilation: once per bucket, for all sizes, and never in the batch processing time."""

from __future__ import annotations

import time

import jax
import numpy as np
import pytest

from evenstep.runlog import read
from tests.jax.setup import balanced, cycle, data, losses, net

pytestmark = pytest.mark.distributed

TOTAL, BUCKET = 64, 8
SIZES = tuple((x, TOTAL - x) for x in range(1, TOTAL))
"""Every split of the total: 63 batch sizes, in 8 buckets."""
COMPILED = "/jax/core/compile/backend_compile_duration"


def compiled_by(policy, num_iterations, **settings):
    """Return after how many iterations which number of programs had been compiled, as JAX counts.

    What the adapter itself says is returned as well.
    """
    events: list[str] = []

    def note(event, duration, **tags):
        events.append(event)

    with balanced(TOTAL, bucket=BUCKET, policy=policy, **settings) as balancer:
        loader = balancer.loader(data(TOTAL * num_iterations))
        value_and_grad = balancer.value_and_grad(losses)
        params, counts, sizes = net(), [], []
        jax.monitoring.register_event_duration_secs_listener(note)
        try:
            for batch in loader:
                value_and_grad(params, *batch)
                counts.append(events.count(COMPILED))
                sizes.append(len(batch[0]))
        finally:
            jax.monitoring.unregister_event_duration_listener(note)
        return counts, sizes, value_and_grad.num_programs


def test_63_sizes_are_compiled_in_8_buckets(workers):
    for counts, sizes, num_programs in workers.run(
        compiled_by, policy=cycle(*SIZES, times=2), num_iterations=2 * len(SIZES)
    ):
        assert len(set(sizes)) == 63
        assert num_programs == 8
        # Once more: the program that splits the sum, and the sum unless another test compiled it.
        new = np.diff(counts)
        assert counts[0] >= 2 and np.count_nonzero(new) == 7 and new.max() == 1
        assert not new[len(SIZES) - 1 :].any()


def slowly_compiled(log):
    """Train with a loss function that takes a second to trace, in several buckets."""

    def traced(params, *batch):
        time.sleep(1.0)
        return losses(params, *batch)

    plans = cycle((8, 56), (24, 40), (40, 24))
    with balanced(TOTAL, bucket=BUCKET, policy=plans, warm_up=0, log=log) as balancer:
        value_and_grad = balancer.value_and_grad(traced)
        for batch in balancer.loader(data(6 * TOTAL)):
            value_and_grad(net(), *batch)
        return value_and_grad.num_programs


def test_compiling_is_not_batch_processing_time(workers, tmp_path):
    path = tmp_path / "run.jsonl"
    assert workers.run(slowly_compiled, log=str(path)) == [3, 3]
    times = read(path).segments[0].times
    # No time is reported where a program runs for the first time; tracing alone is a second.
    assert np.isnan(times).all(axis=1).tolist() == [True] * 3 + [False] * 3
    assert times[3:].max() < 1.0
