"""`equal_finish`: the figures of algorithms.md in scenario G, and its decisions one by one."""

import numpy as np
import pytest

from evenstep.core import Limits
from evenstep.errors import InvalidSetting
from evenstep.policies import EqualFinish
from evenstep.simulator.clusters.scenarios import gpu, make_scenario
from tests.figures import numbers_in
from tests.policies.examples import Run, play, sizes_of, view_of


def lines(overheads, seconds):
    return lambda k, sizes: np.array(overheads) + np.array(seconds) * sizes


def first_plan(times, current, policy=EqualFinish(), **more):  # noqa: B008
    decision, _ = policy.plan(view_of(current, times, **more), policy.init(len(current)))
    return decision


def test_the_four_gpus_stand_at_the_optimum_by_iteration_5_and_soon_after_the_change():
    run = Run(make_scenario("G", noisy=False), "equal_finish", iterations=200)
    assert run.sizes[149] == (89, 21, 12, 6)
    assert run.stands_from(0, 150) <= 5
    assert run.sizes[199] == (100, 8, 13, 7)
    assert run.stands_from(150, 200) <= 150 + 4


def test_it_settles_with_plans_that_come_late_too():
    run = Run(make_scenario("G", noisy=False), "equal_finish", iterations=150, delay=1)
    assert run.sizes[149] == (89, 21, 12, 6)
    assert run.stands_from(0, 150) <= 12


def test_it_settles_among_sixteen_gpus_with_noise():
    run = Run(make_scenario("G", 16, iterations=150, seed=1), "equal_finish", iterations=150)
    best = run.cluster.optimum(run.iterations[0].at)
    within = [
        run.cluster.expected_times(i.sizes, i.at).max()
        <= 1.05 * run.cluster.expected_times(best, i.at).max()
        for i in run.iterations
    ]
    assert np.mean(within[8:]) >= 0.95


def test_the_first_times_are_taken_as_all_proportional():
    # Scenario G at 32 samples each: 0.75, 1.58, 2.25 and 3.25 s.
    decision = first_plan([0.75, 1.58, 2.25, 3.25], [32] * 4)
    assert decision.sizes.tolist() == [63, 30, 21, 14]
    assert numbers_in(decision.reason) == [3.25, 1.481]
    assert decision.predicted_times == pytest.approx(
        [0.75 * 63 / 32, 1.58 * 30 / 32, 2.25 * 21 / 32, 3.25 * 14 / 32]
    )
    assert decision.advice == ()


def test_nothing_moves_before_anything_was_seen():
    decision = first_plan(None, [32, 16])
    assert (decision.sizes.tolist(), decision.reason) == ([32, 16], "")


def test_a_size_changes_at_most_by_a_factor_of_three_at_once():
    assert first_plan([30.0, 1.0], [32, 32]).sizes.tolist() == [11, 53]
    assert first_plan([30.0, 1.0], [96, 8]).sizes.tolist() == [80, 24]
    wider = EqualFinish(largest_move=8.0)
    assert first_plan([30.0, 1.0], [32, 32], wider).sizes.tolist() == [4, 60]


def test_it_does_not_move_for_less_than_the_noise_could_feign():
    # A gain of 3 %, against an uncertainty of 5 % sqrt(2 ln 2) after one observation.
    assert first_plan([1.06, 1.0], [320, 320]).sizes.tolist() == [320, 320]
    assert first_plan([1.2, 1.0], [320, 320]).sizes.tolist() == [291, 349]


def test_it_does_not_move_for_less_than_the_least_gain():
    def settled(gap, policy):
        return sizes_of(play(policy, lines([gap, 0], [0.01, 0.01]), [320, 320], 60))[-1]

    assert settled(0.2, EqualFinish()) == (310, 330)
    # 0.04 s of 3.24 s: 0.6 % to gain.
    assert settled(0.04, EqualFinish()) == (320, 320)
    assert settled(0.04, EqualFinish(least_gain=0.003)) == (318, 322)


def test_one_spike_changes_no_size():
    def times(k, sizes):
        return 0.1 + 0.01 * sizes * np.where((k == 30) & (np.arange(3) == 1), 3.0, 1.0)

    assert set(sizes_of(play(EqualFinish(), times, [32, 32, 32], 60))) == {(32, 32, 32)}


def test_a_lasting_change_moves_all_sizes():
    def times(k, sizes):
        return 0.01 * sizes * np.where((k >= 30) & (np.arange(3) == 1), 2.0, 1.0)

    sizes = sizes_of(play(EqualFinish(), times, [30, 30, 30], 40))
    assert sizes[30] == (30, 30, 30)
    assert sizes[36:] == [(36, 18, 36)] * 4


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_identical_workers_lose_nothing(seed):
    cluster = make_scenario("identical", seed=seed or 0, noisy=seed is not None)
    assert Run(cluster, "equal_finish", iterations=200).waste() <= 0.001


@pytest.mark.parametrize("cap", [40, 46, 53, 64, 75, 88, 99])
def test_memory_is_not_overrun(cap):
    run = Run(gpu(4, 60, seed=1, v100_cap=cap), "equal_finish", 60)
    # m = 0.3 + 0.7 x / cap stays below 0.95; beyond 89 samples there is nothing to gain.
    assert max(x[0] for x in run.sizes) <= 13 * cap // 14
    assert min(13 * cap // 14, 87) <= run.sizes[-1][0]


def test_memory_is_taken_to_grow_in_proportion_until_it_was_measured():
    # 0.5 at 32 samples: not above 60, whatever the speed suggests.
    decision = first_plan([1.0, 30.0], [32, 32], device_memory=[0.5, 0.2])
    assert decision.sizes.tolist() == [53, 11]
    decision = first_plan([1.0, 30.0], [32, 32], device_memory=[0.75, 0.2])
    assert decision.sizes.tolist() == [40, 24]


def test_who_is_above_the_guard_already_may_stay():
    decision = first_plan([1.0, 3.0], [32, 32], device_memory=[0.97, 0.2])
    assert decision.sizes.tolist() == [32, 32]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits.of(3, cap=[20, 99, 99]), [20, 38, 38]),
        (Limits.of(3, minimum=[1, 40, 1]), [28, 40, 28]),
        (Limits.of(3, granularity=16), [32, 32, 32]),
        (Limits.of(3, cap=[0, 99, 99], minimum=0), [0, 48, 48]),
        # Far from the sizes seen, but it holds at once.
        (Limits.of(3, cap=[5, 5, 99]), [5, 5, 86]),
        (Limits.of(3, minimum=[90, 1, 1]), [90, 3, 3]),
    ],
)
def test_limits_that_tighten_bind_at_once(limits, expected):
    policy = EqualFinish()
    state = policy.init(3)
    for _ in range(20):
        _, state = policy.plan(view_of([32, 32, 32], [1.0, 1.0, 1.0]), state)
    decision, _ = policy.plan(view_of([32, 32, 32], [1.0, 1.0, 1.0], limits=limits), state)
    assert decision.sizes.tolist() == expected
    if expected != [32, 32, 32]:
        assert decision.reason == "limits"


def test_limits_bind_before_anything_was_seen():
    decision = first_plan(None, [32, 32], limits=Limits.of(2, cap=[20, 99]))
    assert (decision.sizes.tolist(), decision.reason) == ([20, 44], "limits")


def test_a_worker_that_joins_late_is_taken_to_be_like_the_median():
    policy = EqualFinish()
    state = policy.init(3)
    _, state = policy.plan(view_of([40, 40, 40], [0.4, 0.8, 1.6]), state)
    state = policy.remap(state, np.array([0, 1, 2, -1]))
    times = [0.3, 0.6, 1.2, np.nan]
    decision, _ = policy.plan(view_of([30, 30, 30, 30], times), state)
    # 100, 50, 25 and 50 samples per second; an average over all three would be 58.
    assert decision.sizes.tolist() == [54, 27, 13, 26]
    assert decision.predicted_times == pytest.approx([0.54, 0.54, 0.52, 0.52], rel=0.02)


def test_advice_carries_the_predicted_time_without_the_worker():
    decisions = play(EqualFinish(), lines([0.1, 0.1, 5.0], [0.01] * 3), [32, 32, 32], 20)
    assert decisions[1].advice == ()
    (advice,) = decisions[-1].advice
    # Two workers with 48 samples each take 0.1 + 0.48 s.
    assert (advice.kind, advice.worker) == ("remove", 2)
    assert advice.predicted_time == pytest.approx(0.58, rel=0.02)
    # It may not be benched, and keeps a small batch.
    assert 1 <= decisions[-1].sizes[2] <= 4


def test_a_slow_worker_that_still_helps_is_not_advised_against():
    # Its 4 samples take 1.25 s, and spare the others 2 of their 48. After the first look a size
    # cannot fall below a third: that is no reason to do without it.
    decisions = play(EqualFinish(), lines([0, 0, 0], [1 / 32, 1 / 32, 10 / 32]), [32, 32, 32], 20)
    assert sizes_of(decisions)[:3] == [(32, 32, 32), (43, 42, 11), (46, 46, 4)]
    assert {d.advice for d in decisions} == {()}


def test_all_workers_move_at_once():
    seconds = np.array([0.01, 0.02, 0.03, 0.04, 0.05, 0.06])
    sizes = sizes_of(play(EqualFinish(), lines(np.zeros(6), seconds), [49] * 6, 3))
    assert sizes == [(49,) * 6, (120, 60, 40, 30, 24, 20), (120, 60, 40, 30, 24, 20)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"least_gain": -0.1}, "least_gain of equal_finish must be >= 0, got -0.1"),
        ({"least_gain": float("nan")}, "least_gain of equal_finish must be >= 0, got nan"),
        ({"largest_move": 1.0}, "largest_move of equal_finish must be finite and > 1, got 1.0"),
        (
            {"largest_move": float("inf")},
            "largest_move of equal_finish must be finite and > 1, got inf",
        ),
        ({"patience": 0}, "patience of equal_finish must be >= 1, got 0"),
        ({"patience": 1.5}, "patience of equal_finish must be an integer, got 1.5"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(InvalidSetting) as caught:
        EqualFinish(**settings)
    assert str(caught.value) == message
