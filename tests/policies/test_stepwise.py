"""`stepwise` (Alg. 2): the paper's figures in scenario G, and the readings one by one."""

import numpy as np
import pytest

from evenstep.core import Advice, Limits
from evenstep.errors import InvalidSetting
from evenstep.policies import Stepwise
from evenstep.policies.stepwise import FAST, FINE
from evenstep.simulator.clusters.scenarios import gpu, make_scenario
from tests.policies.examples import Run, play, sizes_of, view_of


def constant(*times):
    return lambda k, sizes: np.array(times)


def per_sample(*seconds):
    return lambda k, sizes: np.array(seconds) * sizes


def decide(policy, times, boundaries=5, **more):
    """Return the decision after some boundaries with the same reports."""
    state = policy.init(len(times))
    decision = None
    for _ in range(boundaries):
        decision, state = policy.plan(view_of(times=times, **more), state)
    assert decision is not None
    return decision


@pytest.mark.parametrize("policy", ["stepwise", "stepwise:literal=true"])
@pytest.mark.parametrize(("delay", "fine_from", "stands_from"), [(0, 17, 39), (1, 29, 55)])
def test_the_four_gpus_are_balanced_as_in_the_paper(policy, delay, fine_from, stands_from):
    run = Run(make_scenario("G", noisy=False), policy, iterations=150, delay=delay)
    assert run.begins(FINE) == fine_from
    assert run.sizes[149] == (89, 21, 12, 6)
    assert run.stands_from(0, 150) == stands_from


def test_a_step_moves_once_the_leader_has_led_for_the_window():
    sizes = sizes_of(play(Stepwise(), per_sample(0.01, 0.02, 0.03), [32, 32, 32], 8))
    # The first time is seen at boundary 1, the fifth at boundary 5; from then on every one moves.
    assert sizes[:5] == [(32, 32, 32)] * 5
    assert sizes[5:8] == [(37, 32, 27), (42, 32, 22), (47, 32, 17)]


def test_a_decision_says_what_moved_and_in_which_phase():
    decision = decide(Stepwise(), [0.1, 0.2, 0.3], current=[32, 32, 32])
    assert decision.sizes.tolist() == [37, 32, 27]
    assert decision.reason == "5 from straggler 2 to leader 0"
    assert (decision.phase, decision.advice) == (FAST, ())


def test_one_iteration_in_which_the_leader_did_not_lead_restarts_the_window():
    def times(k, sizes):
        return np.array([0.1, 0.2]) if k != 2 else np.array([0.2, 0.1])

    # The swap in iteration 2 is seen at boundary 3; five boundaries of leading follow it. As the
    # leader was once slower, that is also the end of fast-approach: steps of 1, windows of 20.
    decisions = play(Stepwise(), times, [32, 32], 26)
    assert [d.phase for d in decisions[:5]] == [FAST] * 3 + [FINE] * 2
    assert sizes_of(decisions)[:23] == [(32, 32)] * 23
    assert sizes_of(decisions)[23:] == [(33, 31), (34, 30), (35, 29)]


def test_fine_tuning_begins_when_the_leader_has_been_the_slower_one_before():
    # 0.28 s against 0.4 s; after the first step 0.33 s against 0.3 s, the other way round.
    decisions = play(Stepwise(), per_sample(0.01, 0.02), [28, 20], 12)
    assert sizes_of(decisions)[4:7] == [(28, 20), (33, 15), (33, 15)]
    assert [d.phase for d in decisions[4:8]] == [FAST, FAST, FINE, FINE]


def test_there_is_no_way_back_to_fast_approach():
    policy = Stepwise()
    state = policy.init(2)
    _, state = policy.plan(view_of([32, 32], [0.2, 0.1]), state)
    decisions = []
    for _ in range(25):
        decision, state = policy.plan(view_of([32, 32], [0.1, 0.2]), state)
        decisions.append(decision)
    assert {decision.phase for decision in decisions} == {FINE}
    assert decisions[-1].sizes.tolist() == [33, 31]


def test_a_straggler_too_small_to_give_is_advised_against_and_the_others_go_on():
    decision = decide(Stepwise(), [0.9, 0.1, 0.2], current=[5, 32, 32])
    assert decision.sizes.tolist() == [5, 37, 27]
    assert decision.advice == (Advice(worker=0, predicted_time=None),)


def test_to_the_letter_such_a_straggler_stops_every_move():
    decision = decide(Stepwise(literal=True), [0.9, 0.1, 0.2], 30, current=[5, 32, 32])
    assert decision.sizes.tolist() == [5, 32, 32]
    assert decision.advice == (Advice(worker=0, predicted_time=None),)
    decision = decide(Stepwise(literal=True), [0.9, 0.1, 0.2], current=[6, 32, 32])
    assert decision.sizes.tolist() == [1, 37, 32]
    assert decision.advice == ()


@pytest.mark.parametrize("literal", [False, True])
def test_the_straggler_is_not_asked_for_more_than_its_minimum_leaves(literal):
    limits = Limits.of(3, minimum=30)
    decision = decide(
        Stepwise(literal=literal), [0.9, 0.1, 0.2], current=[32, 64, 64], limits=limits
    )
    assert decision.sizes.tolist() == ([32, 64, 64] if literal else [32, 69, 59])
    assert decision.advice == (Advice(worker=0, predicted_time=None),)


def test_the_leader_must_have_memory_for_the_step():
    # One sample takes at most 1 / 40: five of them from 0.8 on are 0.925, from 0.9 on too many.
    fits = decide(Stepwise(), [0.1, 0.3], current=[32, 32], device_memory=[0.8, 0.5])
    assert fits.sizes.tolist() == [37, 27]
    full = decide(Stepwise(), [0.1, 0.3], current=[32, 32], device_memory=[0.9, 0.5])
    assert full.sizes.tolist() == [32, 32]


def test_to_the_letter_the_leader_must_have_memory_before_the_step():
    policy = Stepwise(literal=True)
    fits = decide(policy, [0.1, 0.3], current=[32, 32], device_memory=[0.95, 0.5])
    assert fits.sizes.tolist() == [37, 27]
    full = decide(policy, [0.1, 0.3], current=[32, 32], device_memory=[0.96, 0.5])
    assert full.sizes.tolist() == [32, 32]


def test_to_the_letter_a_leader_at_its_limit_stops_the_move():
    policy, limits = Stepwise(literal=True), Limits.of(3, cap=[36, 99, 99])
    decision = decide(policy, [0.1, 0.2, 0.3], current=[32, 32, 32], limits=limits)
    assert decision.sizes.tolist() == [32, 32, 32]


def test_the_next_fastest_leads_where_the_fastest_has_no_room():
    memory = [0.94, 0.5, 0.5]
    decision = decide(Stepwise(), [0.1, 0.2, 0.3], current=[32, 32, 32], device_memory=memory)
    assert decision.sizes.tolist() == [32, 37, 27]
    decision = decide(
        Stepwise(), [0.1, 0.2, 0.3], current=[32, 32, 32], limits=Limits.of(3, cap=[36, 99, 99])
    )
    assert decision.sizes.tolist() == [32, 37, 27]


def test_no_size_changes_if_no_worker_may_lead():
    decision = decide(Stepwise(), [0.1, 0.3], current=[32, 32], device_memory=[0.94, 0.94])
    assert decision.sizes.tolist() == [32, 32]


@pytest.mark.parametrize("cap", [40, 50, 64, 75, 99])
def test_memory_is_not_overrun(cap):
    run = Run(gpu(4, 120, seed=1, v100_cap=cap), "stepwise", 120)
    largest = max(x[0] for x in run.sizes)
    # m = 0.3 + 0.7 x / cap stays below 0.95; beyond 89 samples there is nothing to gain.
    assert largest <= 13 * cap // 14
    assert min(13 * cap // 14, 87) <= run.sizes[-1][0]


def test_steps_are_whole_granules():
    limits = Limits.of(2, granularity=4)
    decision = decide(Stepwise(), [0.1, 0.3], current=[32, 32], limits=limits)
    assert decision.sizes.tolist() == [40, 24]


def test_a_plan_that_is_not_in_effect_yet_is_not_judged():
    policy = Stepwise()
    state = policy.init(2)
    for _ in range(4):
        _, state = policy.plan(view_of([32, 32], [0.1, 0.3]), state)
    late, _ = policy.plan(view_of([37, 27], [0.1, 0.3], used=[32, 32]), state)
    assert late.sizes.tolist() == [37, 27]
    made, _ = policy.plan(view_of([37, 27], [0.1, 0.3]), state)
    assert made.sizes.tolist() == [42, 22]


def test_tightened_limits_come_before_any_move():
    decision = decide(
        Stepwise(), [0.1, 0.3], 1, current=[40, 24], limits=Limits.of(2, cap=[32, 99])
    )
    assert decision.sizes.tolist() == [32, 32]
    assert decision.reason == "limits"


def test_equal_workers_do_not_move():
    decisions = play(Stepwise(), constant(0.3, 0.3, 0.3), [32, 32, 32], 60)
    assert set(sizes_of(decisions)) == {(32, 32, 32)}


def test_who_was_slower_than_whom_is_kept_when_others_leave():
    policy = Stepwise()
    state = policy.init(3)
    # Worker 2 was once slower than worker 0; then it leads it.
    _, state = policy.plan(view_of([32, 32, 32], [0.2, 0.25, 0.3]), state)
    state = policy.remap(state, np.array([2, 0]))
    decision, state = policy.plan(view_of([48, 48], [0.1, 0.2]), state)
    assert decision.phase == FINE
    fresh = policy.remap(policy.init(3), np.array([2, 0]))
    decision, _ = policy.plan(view_of([48, 48], [0.1, 0.2]), fresh)
    assert decision.phase == FAST


def test_a_newcomer_is_watched_for_a_whole_window():
    policy = Stepwise()
    state = policy.init(2)
    for _ in range(10):
        _, state = policy.plan(view_of([32, 32], [0.1, 0.1]), state)
    state = policy.remap(state, np.array([0, 1, -1]))
    sizes = []
    for _ in range(5):
        decision, state = policy.plan(view_of([22, 22, 22], [0.1, 0.2, 0.3]), state)
        sizes.append(decision.sizes.tolist())
    assert sizes == [[22, 22, 22]] * 4 + [[27, 22, 17]]


@pytest.mark.parametrize("name", ["step", "observation_window", "fine_step", "fine_window"])
@pytest.mark.parametrize(("value", "rule"), [(0, ">= 1"), (2.5, "an integer"), ("a", "an integer")])
def test_settings_that_cannot_be_are_refused(name, value, rule):
    with pytest.raises(InvalidSetting) as caught:
        Stepwise(**{name: value})
    assert str(caught.value) == f"{name} of stepwise must be {rule}, got {value!r}"
