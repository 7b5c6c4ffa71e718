"""Stragglers: found by lasting advice, and benched until they are fast again."""

from __future__ import annotations

import numpy as np
import pytest
import torch.distributed as dist

from evenstep.core import Advice, Plan
from evenstep.errors import InvalidSetting
from evenstep.pytorch.straggler import check_straggler
from evenstep.training.local_planning import StragglerWatch
from tests.pytorch.setup import balanced, data, model_of
from tests.pytorch.test_balancer import Emulated


class Recovering(Emulated):
    """A worker that is far too slow between two iterations."""

    def __init__(self, slow: tuple[int, int]) -> None:
        super().__init__(1000.0)
        self._slow = slow
        self._count = 0

    def batch(self, batch_size: float) -> None:
        is_slow = self._slow[0] <= self._count < self._slow[1]
        self._speed = 0.5 if is_slow else 1000.0
        self._count += 1
        super().batch(batch_size)


def recover():
    """Return the sizes of every iteration, and how many batches this worker computed."""
    worker = dist.get_rank()
    timer = Recovering((5, 30) if worker == 1 else (0, 0))
    with balanced(24, straggler="bench", timer=timer) as balancer:
        model = model_of(balancer)
        sizes, calls = [], []

        def loss_of(samples, labels):
            calls.append(len(samples))
            return model(samples).sum() / len(samples)

        for batch in balancer.loader(data(24 * 90)):
            balancer.backward(loss_of, *batch)
            sizes.append(balancer.plan.sizes.tolist())
        return sizes, calls


@pytest.mark.distributed
def test_benched_worker_computes_nothing_and_comes_back_when_it_is_fast_again(workers):
    (sizes, _), (others, calls), _ = workers.run(recover, count=3)
    assert sizes == others
    assert all(sum(row) == 24 for row in sizes)
    idle = [k for k, row in enumerate(sizes) if row[1] == 0]
    assert idle[0] in range(6, 15)
    assert len(calls) == len(sizes) - len(idle)
    assert min(calls) > 0
    # Back to a fair share, some patience after it has recovered.
    assert sizes[-1] == pytest.approx([8, 8, 8], abs=2)


def test_a_straggler_is_found_after_the_same_advice_for_some_time():
    watch = StragglerWatch(patience=3)
    slow, other, fine = (
        Plan(0, 0, np.array([2, 2]), advice=advice)
        for advice in ((Advice(1, 0.5),), (Advice(0, 0.5),), ())
    )
    plans = [slow, slow, other, slow, slow, slow, slow, fine, fine, fine]
    for plan, found in zip(plans, [None] * 5 + [1, 1] + [None] * 3, strict=True):
        watch.observe(plan)
        assert watch.found == found


TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "1"}


@pytest.mark.parametrize(
    ("action", "checkpoint", "environment", "message"),
    [
        ("shoot", None, TORCHRUN, "straggler must be one of advise, bench, restart, got 'shoot'"),
        ("restart", None, TORCHRUN, "checkpoint goes with straggler 'restart', got None"),
        ("bench", print, TORCHRUN, "checkpoint goes with straggler 'restart'"),
        ("restart", print, {}, "takes workers started by torchrun"),
        ("restart", print, {**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}, "--nproc-per-node 1.*got 4"),
    ],
)
def test_actions_that_cannot_be_done_are_refused(action, checkpoint, environment, message):
    with pytest.raises(InvalidSetting, match=message):
        check_straggler(action, checkpoint, environment)
