"""`cautious`: even sizes where predictions are noise, the gain of Alg. 1 where they are not."""

from __future__ import annotations

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.policies import Cautious, Even, Proportional, make_policy
from evenstep.policies.cautious import COMPARING
from tests.policies.busy_cores import SAMPLES, Job, play
from tests.policies.examples import view_of

SEEDS = (201, 202, 203)
EQUAL = {
    "2 ms": Job(0.002, overhead=0.7),
    "2 ms, interrupted": Job(0.002, overhead=0.9, spikes=0.3),
    "2 ms, neighbour": Job(0.002, overhead=0.9, dwell=0.05, spikes=0.3),
    "5 ms": Job(0.005, overhead=0.5),
    "5 ms, neighbour": Job(0.005, overhead=0.9, dwell=0.02, spikes=0.3),
    "20 ms": Job(0.02),
    "20 ms, interrupted": Job(0.02, spikes=0.5, noise=0.15),
    "200 ms": Job(0.2, overhead=0.05),
}
"""Equal workers, which have nothing to gain by other sizes."""


def over_even(job, policy, seed, iterations=800):
    """Return sizes relative to even ones, and the iteration time over that of even sizes."""
    sizes, times = play(job, policy, seed, iterations)
    _, plain = play(job, Even(), seed, iterations)
    return sizes / SAMPLES, times.max(axis=1).sum() / plain.max(axis=1).sum()


def near_even(runs):
    """Return the part of the iterations in which all sizes were within 20 % of even."""
    return np.mean([np.abs(sizes - 1).max(axis=1) <= 0.2 for sizes, _ in runs])


@pytest.mark.parametrize("name", EQUAL)
def test_equal_workers_lose_at_most_one_percent_and_stay_near_even_sizes(name):
    runs = [over_even(EQUAL[name], Cautious(), seed) for seed in SEEDS]
    assert np.median([ratio for _, ratio in runs]) <= 1.01
    assert near_even(runs) >= 0.75


def test_sizes_of_alg_1_drift_off_even_ones_where_batches_hardly_matter():
    # A smaller batch takes nearly as long, and so its worker seems slower, and gets less again.
    runs = [over_even(EQUAL["2 ms, interrupted"], Proportional(), seed) for seed in SEEDS]
    assert near_even(runs) < 0.6
    assert min(sizes.min() for sizes, _ in runs) == 1 / SAMPLES


@pytest.mark.parametrize(
    ("job", "most"),
    [
        (Job(0.05, overhead=0.1, speeds=(1.0, 0.5)), 0.74),
        (Job(0.05, overhead=0.1, speeds=(1.0, 0.8)), 0.97),
        (Job(0.02, dwell=2.0), 0.8),
    ],
    ids=["half as fast", "four fifths as fast", "a neighbour that stays"],
)
def test_what_there_is_to_gain_is_gained(job, most):
    assert np.median([over_even(job, Cautious(), seed)[1] for seed in SEEDS]) <= most


def view(current, times, speeds, used=None):
    return view_of(current, times, speeds=speeds, used=used)


def test_first_plan_waits_until_a_large_gain_is_predicted_twice():
    policy = Cautious()
    state = policy.init(2)
    speeds, current, sizes = np.array([100.0, 300.0]), np.array([32, 32]), []
    for _ in range(3):
        decision, state = policy.plan(view(current, current / speeds, speeds), state)
        current = decision.sizes
        sizes.append(current.tolist())
    assert sizes == [[32, 32], [16, 48], [16, 48]]


def test_sizes_that_are_not_faster_than_even_ones_go_back_to_even():
    # Speeds that say 1 to 2, and times that are the same whatever the sizes are.
    policy = Cautious()
    state, current = policy.init(2), np.array([32, 32])
    rng = np.random.default_rng(0)
    history, reasons = [], []
    for _ in range(150):
        times = 0.1 * np.exp(0.02 * rng.standard_normal(2))
        decision, state = policy.plan(view(current, times, [100.0, 200.0]), state)
        current = decision.sizes
        history.append(current.tolist())
        reasons.append(decision.reason)
    assert [21, 43] in history
    assert COMPARING in reasons
    block = reasons.index(COMPARING)
    assert block <= 70
    assert history[block : block + 40] == [[32, 32]] * 40


def test_sizes_that_are_faster_than_even_ones_come_back_after_the_comparison():
    policy = Cautious()
    state, current = policy.init(2), np.array([32, 32])
    speeds = np.array([100.0, 200.0])
    history = []
    for _ in range(400):
        decision, state = policy.plan(view(current, current / speeds, speeds), state)
        current = decision.sizes
        history.append(current.tolist())
    assert history.count([32, 32]) == 1 + 16
    assert history[-1] == [21, 43]


def test_comparison_ends_where_a_worker_has_no_times():
    policy = Cautious()
    state, current = policy.init(2), np.array([32, 32])
    speeds = np.array([100.0, 200.0])
    decision, _ = policy.plan(view(current, None, speeds), state)
    while decision.reason != COMPARING:
        decision, state = policy.plan(view(current, current / speeds, speeds), state)
        current = decision.sizes
    assert current.tolist() == [32, 32]
    decision, state = policy.plan(view(current, [0.3, np.nan], speeds), state)
    assert decision.sizes.tolist() == [21, 43]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("least_gain=-1", "least_gain of cautious must be >= 0, got -1"),
        ("cost=0", "cost of cautious must be > 0 and < 1, got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InvalidSetting, match=message):
        make_policy(f"cautious:{settings}")
