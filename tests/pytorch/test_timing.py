"""Batch processing times: a worker's own work, and nothing else."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import nn

from tests.pytorch.setup import FEATURES, balanced, cycle, data, model_of, net, note_reports

pytestmark = pytest.mark.distributed

TOTAL = 8
WORK = 0.04
"""Seconds that a fast worker computes."""


class Slow(nn.Module):
    """A net that takes some time in its forward pass."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seconds = 0.0

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        outputs: torch.Tensor = self.inner(samples)
        return outputs


def beside_a_slow_colleague(batch_norm, mean_before_backward=False, weighs=False):
    """Return typical times of both workers, with equal work and with one ten times as slow."""
    inner = Slow(net(batch_norm=batch_norm))
    with balanced(TOTAL, inner, policy=cycle((4, 4))) as balancer:
        model = model_of(balancer)
        noted = note_reports(balancer)
        loader = balancer.loader(data(TOTAL * 7))
        for factor in (1, 10):
            inner.seconds = WORK * (factor if balancer.worker == 1 else 1)
            for samples, _ in loader:
                loss = model(samples).sum()
                if mean_before_backward:
                    balancer.mean(loss)
                (balancer.weigh(loss, 5) if weighs else loss).backward()
        balancer.close()
        times = np.array([reports.times for reports, _ in noted])
        # A busy machine may delay some iterations, but not all of them.
        equal, unequal = (np.nanquantile(part, 0.3, axis=0) for part in (times[:7], times[7:]))
        return equal.tolist(), unequal.tolist()


@pytest.mark.parametrize(
    "arguments",
    [{"batch_norm": False}, {"batch_norm": True},
     {"batch_norm": False, "mean_before_backward": True},
     {"batch_norm": False, "weighs": True}],
    ids=["plain", "batch norm", "mean", "weighed"],
)  # fmt: skip
def test_time_of_a_fast_worker_is_not_that_of_a_slow_colleague(workers, arguments):
    for equal, unequal in workers.run(beside_a_slow_colleague, **arguments):
        assert equal[0] >= WORK
        assert unequal[0] == pytest.approx(equal[0], rel=0.25)
        assert unequal[1] >= 10 * WORK


ELSEWHERE = 0.15


def elsewhere(how):
    """Spend time in the loop that is not batch processing; return all reported times."""
    inner = Slow(net())
    inner.seconds = 0.01
    with balanced(TOTAL, inner, policy=cycle((2, 6)), warm_up=0) as balancer:
        model = model_of(balancer)
        noted = note_reports(balancer)
        validation = balancer.loader(data(TOTAL), shuffle=False)
        for i, (samples, _) in enumerate(balancer.loader(data(TOTAL * 6))):
            if how == "continue" and i % 2 == 0:
                model(samples)
                time.sleep(ELSEWHERE)
                continue
            if how == "evaluate first":
                model.eval()
                with torch.no_grad():
                    model(samples)
                    time.sleep(ELSEWHERE)
                model.train()
            if how == "no_sync" and i % 2 == 0:
                with model.no_sync():
                    model(samples).sum().backward()
                time.sleep(ELSEWHERE)
                continue
            model(samples).sum().backward()
            if how == "after":
                time.sleep(ELSEWHERE)
            if how == "evaluate":
                with torch.no_grad():
                    for others, _ in validation:
                        model(others)
                        time.sleep(ELSEWHERE)
            if how == "other model":
                other = nn.Linear(FEATURES, 1)
                other(samples).sum().backward()
                time.sleep(ELSEWHERE)
        balancer.close()
        return [(reports.times.tolist(), reports.batch_sizes.tolist()) for reports, _ in noted]


@pytest.mark.parametrize(
    "how", ["continue", "no_sync", "after", "evaluate", "evaluate first", "other model"]
)
def test_time_spent_elsewhere_does_not_count(workers, how):
    for rows in workers.run(elsewhere, how=how):
        times, sizes = zip(*rows, strict=True)
        pieces = 2 if how == "no_sync" else 1
        assert set(map(tuple, sizes)) == {(2 * pieces, 6 * pieces)}
        # A busy machine may delay some iterations, but not all of them.
        for t in np.min(times[1:], axis=0):
            assert 0.01 * pieces <= t < ELSEWHERE


def extra_exchanges():
    """Exchange gradients twice per batch, as adversarial training does."""
    with balanced(TOTAL, policy=cycle((4, 4)), warm_up=0) as balancer:
        model = model_of(balancer)
        noted = note_reports(balancer)
        waiting = 0
        for samples, _ in balancer.loader(data(TOTAL * 3)):
            model(samples).sum().backward()
            model(samples).mean().backward()
            waiting = len(balancer._loop._arrived)
        balancer.close()
        return waiting, [(done.iteration, bool(got.observed.all())) for got, done in noted]


def test_a_second_exchange_per_batch_is_no_measurement_and_nothing_piles_up(workers):
    for waiting, seen in workers.run(extra_exchanges):
        assert waiting == 2
        assert seen == [(i, i % 2 == 0) for i in range(6)]
