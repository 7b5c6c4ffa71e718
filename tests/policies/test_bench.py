"""The bench: which workers are benched, when they are tried again, and how they return."""

import numpy as np
import pytest

from evenstep.core import Limits
from evenstep.policies import EqualFinish, EveryN
from evenstep.policies.equal_finish import Bench
from tests.figures import numbers_in
from tests.policies.examples import play, sizes_of, view_of

BENCHABLE = Limits.of(3, minimum=0)


def disturbed(until, since=0):
    """Return times of workers of which the last has an overhead of 5 s for a while."""

    def times(k, sizes):
        overhead = 5.0 if since <= k < until else 0.1
        return np.array([0.1, 0.1, overhead]) + 0.01 * sizes

    return times


def changes(decisions):
    """Return when the sizes changed, and to what."""
    sizes = sizes_of(decisions)
    return {k: x for k, x in enumerate(sizes) if k == 0 or x != sizes[k - 1]}


def test_a_worker_that_only_holds_the_others_up_is_benched():
    decisions = play(EqualFinish(), disturbed(until=99), [32, 32, 32], 20, BENCHABLE)
    assert changes(decisions) == {0: (32, 32, 32), 1: (43, 42, 11), 2: (48, 48, 0)}
    # Two workers with 48 samples each take 0.1 + 0.48 s.
    (advice,) = decisions[2].advice
    assert (advice.kind, advice.worker) == ("remove", 2)
    assert advice.predicted_time == pytest.approx(0.58, rel=0.02)
    assert numbers_in(decisions[2].reason) == [5.104, 0.5863]
    assert decisions[3].advice == ()


def test_a_slow_worker_that_still_helps_is_not_benched():
    def times(k, sizes):
        return np.array([1.0, 1.0, 10.0]) * sizes / 32

    decisions = play(EqualFinish(), times, [32, 32, 32], 80, BENCHABLE)
    assert changes(decisions) == {0: (32, 32, 32), 1: (43, 42, 11), 2: (46, 46, 4)}


def test_no_worker_is_benched_if_the_minimum_forbids_it():
    limits = Limits.of(3, minimum=[0, 0, 1])
    sizes = sizes_of(play(EqualFinish(), disturbed(until=99), [32, 32, 32], 60, limits))
    assert min(x[2] for x in sizes) >= 1


def test_a_benched_worker_is_tried_again_with_one_sample_and_twice_the_patience_each_time():
    policy = EqualFinish(patience=8)
    decisions = play(policy, disturbed(until=999), [32, 32, 32], 100, BENCHABLE)
    assert changes(decisions) == {
        0: (32, 32, 32),
        1: (43, 42, 11),
        2: (48, 48, 0),
        10: (48, 47, 1),
        11: (48, 48, 0),
        27: (48, 47, 1),
        28: (48, 48, 0),
        60: (48, 47, 1),
        61: (48, 48, 0),
    }


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_a_worker_that_is_fast_again_comes_back(delay):
    policy = EqualFinish(patience=8)
    decisions = play(policy, disturbed(until=40), [32, 32, 32], 110, BENCHABLE, delay)
    sizes = sizes_of(decisions)
    assert (48, 48, 0) in sizes[:5]
    assert sizes[39] == (48, 48, 0)
    assert set(sizes[90:]) == {(32, 32, 32)}
    # A worker that is not tried stays benched.
    assert {x[2] for x in sizes[5:40]} == {0, 1}


def test_a_worker_that_was_benched_late_comes_back_too():
    policy = EqualFinish(patience=8)
    decisions = play(policy, disturbed(since=20, until=40), [32, 32, 32], 100, BENCHABLE)
    sizes = sizes_of(decisions)
    assert sizes[19] == (32, 32, 32)
    assert (48, 48, 0) in sizes[20:40]
    assert set(sizes[80:]) == {(32, 32, 32)}


def test_a_trial_that_was_held_back_is_made_up_for():
    # Boundaries 10, 20, 30 and so on adopt; a trial is due in between, 8 iterations later.
    policy = EveryN(EqualFinish(patience=8), n=10)
    decisions = play(policy, disturbed(until=30), [32, 32, 32], 130, BENCHABLE)
    trials = {k: x[2] for k, x in changes(decisions).items()}
    assert trials == {0: 32, 10: 11, 20: 0, 30: 1, 40: 3, 50: 9, 60: 27, 70: 32}


def test_a_worker_that_may_have_no_samples_is_not_tried():
    policy = EqualFinish(patience=4)
    limits = Limits.of(3, minimum=0, cap=[99, 99, 0])

    def times(k, sizes):
        return np.array([0.1, 0.116, 0.1]) + 0.01 * sizes

    # The others do not move for a gain of 0.7 % either, as they would for a trial.
    assert changes(play(policy, times, [48, 48, 0], 30, limits)) == {0: (48, 48, 0)}


def test_a_minimum_that_is_raised_ends_the_bench():
    policy = EqualFinish()
    state = policy.init(3)
    for _ in range(3):
        view = view_of([48, 48, 0], [0.58, 0.58, np.nan], limits=BENCHABLE)
        _, state = policy.plan(view, state)
    view = view_of([48, 48, 0], [0.58, 0.58, np.nan], limits=Limits.of(3, minimum=4))
    decision, _ = policy.plan(view, state)
    assert decision.sizes.tolist() == [46, 46, 4]


def test_trials_are_whole_granules():
    policy = EqualFinish(patience=8)
    limits = Limits.of(3, minimum=0, granularity=4)
    sizes = sizes_of(play(policy, disturbed(until=999), [32, 32, 32], 40, limits))
    assert {x[2] for x in sizes[3:]} == {0, 4}


def followed(*boundaries, granularity=1):
    """Return the bench after boundaries (sizes in force, whether each worker reported)."""
    bench = Bench.fresh(len(boundaries[0][0]))
    for current, seen in boundaries:
        bench = bench.observe(np.array(current), np.array(seen, dtype=bool), granularity)
    return bench


WORKS, SITS, TRIED, TRIED_LATE = ([32], [1]), ([0], [0]), ([1], [1]), ([1], [0])


@pytest.mark.parametrize(
    ("boundaries", "idle", "benchings", "probing"),
    [
        ([WORKS], 0, 0, False),
        ([WORKS, SITS], 1, 1, False),
        ([WORKS, SITS, SITS], 2, 1, False),
        # The last report of a worker may come when it is already benched.
        ([WORKS, ([0], [1]), SITS], 2, 1, False),
        ([WORKS, SITS, TRIED], 0, 1, False),
        ([WORKS, SITS, TRIED_LATE], 0, 1, True),
        ([WORKS, SITS, TRIED_LATE, TRIED_LATE, TRIED], 0, 1, False),
        ([WORKS, SITS, TRIED, SITS], 1, 2, False),
        ([WORKS, SITS, TRIED_LATE, SITS], 1, 2, False),
        ([WORKS, SITS, TRIED, ([2], [1])], 0, 0, False),
        ([WORKS, SITS, TRIED, ([2], [1]), SITS], 1, 1, False),
    ],
)
def test_the_bench_follows_the_sizes_in_force(boundaries, idle, benchings, probing):
    bench = followed(*boundaries)
    assert (bench.idle[0], bench.benchings[0], bench.probing[0]) == (idle, benchings, probing)


def test_patience_doubles_with_each_benching_but_not_without_end():
    benchings = np.arange(10)
    waits = []
    for idle in range(3 * 64 + 1):
        bench = Bench(np.full(10, idle), benchings, np.zeros(10, dtype=bool))
        waits.append(bench.due(np.zeros(10, dtype=int), patience=3))
    first_due = np.argmax(waits, axis=0)
    assert first_due.tolist() == [3, 3, 6, 12, 24, 48, 96, 192, 192, 192]


def test_only_who_sits_is_due():
    bench = Bench(np.array([9, 9]), np.array([1, 1]), np.zeros(2, dtype=bool))
    assert bench.due(np.array([0, 5]), patience=4).tolist() == [True, False]


def test_who_sits_is_held_at_nothing_and_who_is_tried_at_one_granule():
    bench = Bench(np.array([0, 9, 9, 0]), np.ones(4, dtype=int), np.array([0, 0, 0, 1], bool))
    due = np.array([False, False, True, False])
    lo, hi = np.full(4, 10.0), np.full(4, 90.0)
    most, least = bench.bounds(np.array([30, 0, 0, 4]), due, lo, hi, granularity=4)
    assert (most.tolist(), least.tolist()) == ([90, 0, 4, 4], [10, 0, 4, 4])
