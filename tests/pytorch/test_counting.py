"""Loaders with counts: the samples of plain BSP, dealt so that counts follow the plan."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from evenstep.core.stock_order import stock_order
from evenstep.measure.timer import HostTimer
from tests.pytorch.setup import (
    Indices,
    balanced,
    cycle,
    exchange,
    note_reports,
    visited,
)

pytestmark = pytest.mark.distributed

TOTAL = 24
TABLE = ((6, 18), (20, 4), (12, 12))


def lengths(count):
    """Return counts as lines of text have them: a few are very long."""
    drawn = np.random.default_rng(4).lognormal(3, 1, count)
    return np.minimum(np.ceil(drawn), 200).astype(np.int64)


def epochs(counted, num_workers=0, count=100, as_tensor=False):
    """Return the samples of each of two epochs, iteration by iteration, and sizes for weights."""
    counts: Any = lengths(count) if counted else None
    if as_tensor:
        counts = torch.from_numpy(counts)
    with balanced(TOTAL, policy=cycle(*TABLE), warm_up=0) as balancer:
        noted = note_reports(balancer)
        loader = balancer.loader(Indices(count), counts=counts, num_workers=num_workers)
        seen = [visited(balancer, loader) for _ in range(2)]
        balancer.close()
        return seen, [done.sizes.tolist() for _, done in noted]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_iterations_process_the_samples_of_bsp_with_counts_as_planned(workers, num_workers):
    counts = lengths(100)
    results = workers.run(epochs, counted=True, num_workers=num_workers, as_tensor=True)
    for epoch in range(2):
        order = stock_order(100, 0, epoch)
        iterations = list(zip(*(seen[epoch] for seen, _ in results), strict=True))
        assert len(iterations) == 5
        for k, parts in enumerate(iterations):
            samples = order[k * TOTAL : (k + 1) * TOTAL]
            assert sorted(itertools.chain(*parts)) == sorted(samples.tolist())
            # To weigh gradients by samples takes the number of samples really dealt.
            assert all(sizes[epoch * 5 + k] == list(map(len, parts)) for _, sizes in results)
        for k, parts in enumerate(iterations[:4]):
            tokens = np.array([counts[part].sum() for part in parts])
            planned = np.array(TABLE[(epoch * 5 + k) % 3]) / TOTAL
            np.testing.assert_allclose(tokens / tokens.sum(), planned, atol=0.02)


def test_samples_would_not_do(workers):
    counts = lengths(100)
    results = workers.run(epochs, counted=False)
    parts = next(zip(*(seen[0] for seen, _ in results), strict=True))
    tokens = np.array([counts[part].sum() for part in parts])
    assert abs(tokens[0] / tokens.sum() - TABLE[0][0] / TOTAL) > 0.02


class PerToken(HostTimer):
    """A timer with a clock that the test sets, on however busy a machine."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(lambda: self.now)


def per_token(policy, predictor):
    """Train on workers of which the first needs three times as long per token."""
    seconds = [3e-3, 1e-3][dist.get_rank()]
    counts, timer = lengths(960), PerToken()
    with balanced(TOTAL, policy=policy, predictor=predictor, timer=timer) as balancer:
        noted = note_reports(balancer)
        tokens = []
        for indices, _ in balancer.loader(Indices(960), counts=counts):
            tokens.append(int(counts[indices].sum()))
            timer.now += seconds * tokens[-1]
            exchange(balancer)
        balancer.close()
        times = np.array([reports.times for reports, _ in noted])
        return tokens, times


@pytest.mark.parametrize(("policy", "predictor"), [("proportional", "ema"), ("equal_finish", None)])
def test_tokens_come_to_equal_finish(workers, policy, predictor):
    (first, times), (second, _) = workers.run(per_token, policy=policy, predictor=predictor)
    shares = np.array(first) / np.add(first, second)
    assert shares[0] == pytest.approx(0.5, abs=0.02)
    assert shares[-10:] == pytest.approx(0.25, abs=0.03)
    slow, fast = times[-10:].T
    assert slow == pytest.approx(fast, rel=0.2)


def reported():
    """Return what was reported as x, with a timer that says nothing of its own."""
    counts = lengths(96)
    with balanced(TOTAL, policy=cycle(*TABLE), warm_up=0) as balancer:
        noted = note_reports(balancer)
        wanted = []
        for indices, _ in balancer.loader(Indices(96), counts=counts):
            wanted.append(counts[indices].sum() / counts.mean())
            exchange(balancer)
        balancer.close()
        return wanted, [reports.batch_sizes[balancer.worker] for reports, _ in noted]


def test_reports_are_of_average_samples(workers):
    for wanted, got in workers.run(reported):
        assert got == np.rint(wanted).tolist()
        # An iteration of long samples is more work than one of short ones.
        assert len(set(np.round(wanted, 3))) == 4


def mistaken(which):
    """Give counts that must be refused before the first iteration."""
    counts: dict[str, Any] = {
        "length": [1] * 19,
        "zero": [3] * 7 + [0] * 13,
        "fractions": [1.5] * 20,
        "two of each": [[1, 2]] * 20,
        "of one": [1 + dist.get_rank()] * 20,
        "none of one": [None, [1] * 20][dist.get_rank()],
    }
    policy = "stepwise" if which == "stepwise" else "even"
    with balanced(8, policy=policy) as balancer:
        balancer.loader(Indices(20), counts=counts.get(which, [1] * 20))


MISTAKES = {
    "length": "counts must be one per sample of the dataset (20), got 19",
    "zero": "counts must be >= 1, got 0 for sample 7",
    "fractions": "counts must be one whole number per sample, got float64 of shape (20,)",
    "two of each": "counts must be one whole number per sample, got int64 of shape (20, 2)",
    "of one": "counts must be the same on all workers, got",
    "none of one": "counts must be the same on all workers, got",
    "stepwise": "the policy must not be stepwise where the loader has counts",
}


@pytest.mark.parametrize("which", MISTAKES)
def test_mistake_is_found_before_the_first_iteration_on_all_workers(workers, which):
    for failure in workers.failures(mistaken, which=which):
        assert failure.kind == "InvalidSetting"
        assert MISTAKES[which] in failure.message


def benched():
    """Bench a worker that has counts, too; return what it borrows and reports."""
    with balanced(TOTAL, policy=cycle((TOTAL, 0)), minimum=0, warm_up=0) as balancer:
        noted = note_reports(balancer)
        sizes = []
        for indices, _ in balancer.loader(Indices(48), counts=lengths(48)):
            sizes.append(len(indices))
            exchange(balancer)
        balancer.close()
        return sizes, [reports.observed.tolist() for reports, _ in noted]


def test_benched_worker_borrows_and_reports_nothing(workers):
    for (sizes, observed), wanted in zip(workers.run(benched), [[24, 24], [1, 1]], strict=True):
        assert sizes == wanted
        assert observed == [[True, False]] * 2
