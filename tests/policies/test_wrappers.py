"""Wrappers: decisions held back, limits narrowed, and their short forms."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from evenstep.core import Advice, Decision, Limits
from evenstep.errors import InfeasibleLimits, InvalidSetting
from evenstep.policies import (
    POLICIES,
    WRAPPERS,
    DeadBand,
    EqualFinish,
    Even,
    EveryN,
    Limited,
    ObserveOnly,
    Proportional,
    Static,
    Stepwise,
    make_policy,
)
from tests.policies.examples import play, view_of


@dataclass(frozen=True)
class Wants:
    """A policy that always decides the same, and counts its calls."""

    sizes: tuple[int, ...]

    uses_speeds: ClassVar[bool] = False

    def init(self, num_workers: int) -> int:
        return 0

    def plan(self, view: Any, state: int) -> tuple[Decision, int]:
        advice = (Advice(0, 1.5),)
        sizes = np.array(self.sizes)
        return Decision(sizes, "wanted", np.ones(len(sizes)), advice, phase="p"), state + 1

    def remap(self, state: int, keep: Any) -> int:
        return 100 * state + len(keep)


def decide(policy, current, state=0, **more):
    decision, state = policy.plan(view_of(current, **more), state)
    return decision, state


def test_every_n_adopts_in_every_nth_iteration_only():
    policy = EveryN(Wants((20, 12)), n=3)
    adopted = []
    for k in range(7):
        decision, state = decide(policy, [16, 16], k, iteration=k)
        adopted.append(decision.sizes.tolist() == [20, 12])
        assert state == k + 1
    assert adopted == [True, False, False, True, False, False, True]


def test_held_back_sizes_are_proposed_with_all_details():
    decision, _ = decide(EveryN(Wants((20, 12)), n=3), [16, 16], speeds=[4.0, 8.0])
    assert decision.sizes.tolist() == [16, 16]
    assert decision.proposed is not None
    assert decision.proposed.tolist() == [20, 12]
    # The times are those of the sizes that are used.
    assert decision.predicted_times is not None
    assert decision.predicted_times.tolist() == [4.0, 2.0]
    assert (decision.reason, decision.phase, decision.advice) == ("", "p", (Advice(0, 1.5),))


@pytest.mark.parametrize("wrap", [EveryN, DeadBand])
def test_where_nothing_is_held_back_the_decision_stays_as_it_is(wrap):
    decision, _ = decide(wrap(Wants((16, 16))), [16, 16])
    assert decision.proposed is None
    assert decision.predicted_times is not None
    assert decision.predicted_times.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("wrap", [EveryN, lambda inner: DeadBand(inner, 9.0)])
def test_current_sizes_that_break_the_limits_are_not_kept(wrap):
    decision, _ = decide(wrap(Wants((20, 12))), [24, 8], limits=Limits.of(2, cap=20))
    assert decision.sizes.tolist() == [20, 12]
    decision, _ = decide(wrap(Wants((20, 12))), [18, 14], limits=Limits.of(2, cap=20))
    assert decision.sizes.tolist() == [18, 14]


@pytest.mark.parametrize(
    ("current", "adopted"),
    [
        # Wanted are 20 and 12: a change of exactly 20 % is not more than the threshold.
        ([25, 7], True),
        ([17, 15], False),
        ([16, 16], True),
        ([22, 10], False),
        ([23, 9], True),
        ([32, 0], True),
    ],
)
def test_a_dead_band_adopts_where_some_size_changes_by_more_than_the_threshold(current, adopted):
    decision, state = decide(DeadBand(Wants((20, 12)), threshold=0.2), current)
    assert decision.sizes.tolist() == ([20, 12] if adopted else current)
    assert state == 1


def test_a_dead_band_of_nothing_adopts_everything():
    assert decide(DeadBand(Wants((20, 12)), 0.0), [19, 13])[0].sizes.tolist() == [20, 12]


def test_observing_only_is_plain_bsp_with_proposed_plans():
    policy = ObserveOnly(Wants((20, 13)))
    decision, state = decide(policy, [18, 15], speeds=[4.0, 8.0])
    assert decision.sizes.tolist() == [17, 16]
    assert decision.proposed is not None
    assert decision.proposed.tolist() == [20, 13]
    assert decision.predicted_times is not None
    assert decision.predicted_times.tolist() == [4.25, 2.0]
    assert (decision.reason, decision.phase, decision.advice) == (
        "observe only",
        "p",
        (Advice(0, 1.5),),
    )
    assert state == 1


def test_observing_only_lets_the_policy_learn():
    def times(k, sizes):
        return np.array([0.01, 0.03]) * sizes

    last = play(ObserveOnly(EqualFinish()), times, [32, 32], 20)[-1]
    assert last.sizes.tolist() == [32, 32]
    assert last.proposed is not None
    assert last.proposed.tolist() == [48, 16]


def test_limited_narrows_what_the_policy_may_do():
    speeds = [30.0, 1.0, 1.0]
    policy = Limited(Proportional(), minimum=4, maximum=20)
    assert decide(policy, [11, 11, 10], speeds=speeds)[0].sizes.tolist() == [20, 6, 6]
    granular = Limited(Proportional(), minimum=3, granularity=4)
    assert decide(granular, [16, 8, 8], speeds=speeds)[0].sizes.tolist() == [24, 4, 4]
    limits = Limits.of(3, minimum=7, granularity=2)
    both = decide(granular, [16, 8, 8], speeds=speeds, limits=limits)[0]
    assert both.sizes.tolist() == [16, 8, 8]


def test_limited_to_less_than_the_total_is_infeasible():
    with pytest.raises(InfeasibleLimits, match="add up to 20, less than the total 32"):
        decide(Limited(Even(), maximum=10), [16, 16])


@pytest.mark.parametrize("wrap", WRAPPERS.values())
def test_wrappers_pass_on_what_is_the_policys(wrap):
    assert wrap(Wants((1, 1))).init(2) == 0
    assert wrap(Wants((1, 1))).remap(7, np.array([0, -1])) == 702
    assert not wrap(Even()).uses_speeds
    assert wrap(Proportional()).uses_speeds


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EveryN(Even(), 0), "n of every_n must be >= 1, got 0"),
        (lambda: make_policy("even+every_n:n=2.5"), "n of every_n must be an integer, got 2.5"),
        (lambda: DeadBand(Even(), -0.1), "threshold of dead_band must be >= 0, got -0.1"),
        (lambda: DeadBand(Even(), float("nan")), "threshold of dead_band must be >= 0, got nan"),
        (lambda: Limited(Even(), minimum=-1), "minimum of limited must be >= 0, got -1"),
        (lambda: Limited(Even(), maximum=0), "maximum of limited must be >= 1, got 0"),
        (
            lambda: make_policy("even+limited:maximum=7.5"),
            "maximum of limited must be an integer, got 7.5",
        ),
        (
            lambda: Limited(Even(), minimum=5, maximum=4),
            "limited needs minimum <= maximum, got minimum 5 and maximum 4",
        ),
        (lambda: Limited(Even(), granularity=0), "granularity of limited must be >= 1, got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, message):
    with pytest.raises(InvalidSetting) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        ("even", Even()),
        ("static:shares=2/2/2/15", Static((2.0, 2.0, 2.0, 15.0))),
        ("proportional", Proportional()),
        ("stepwise:step=10,literal=true", Stepwise(step=10, literal=True)),
        ("equal_finish:patience=8", EqualFinish(patience=8)),
        ("proportional+every_n:n=5", EveryN(Proportional(), 5)),
        (
            "stepwise+limited:minimum=4,maximum=64+dead_band:threshold=0.1+observe_only",
            ObserveOnly(DeadBand(Limited(Stepwise(), 4, 64), 0.1)),
        ),
    ],
)
def test_a_policy_can_be_written_in_short(spec, policy):
    assert make_policy(spec) == policy


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "fast",
            "policy must be one of even, static, proportional, cautious, stepwise, "
            "equal_finish, got 'fast'",
        ),
        (
            "even+even",
            "wrapper must be one of limited, every_n, dead_band, observe_only, whole_granules, "
            "got 'even'",
        ),
        (
            "stepwise:stepp=3",
            "a setting of 'stepwise' must be one of step, observation_window, fine_step, "
            "fine_window, literal, got 'stepp' (did you mean 'step'?)",
        ),
        ("even:step=3", "a setting of 'even' cannot be given, it has none, got 'step'"),
        ("even+every_n:n", "settings of 'every_n' must be setting=value, got 'n'"),
    ],
)
def test_a_policy_that_is_not_there_is_refused(spec, message):
    with pytest.raises(InvalidSetting) as caught:
        make_policy(spec)
    assert str(caught.value) == message


def test_every_policy_and_wrapper_is_registered():
    assert list(POLICIES) == [
        "even",
        "static",
        "proportional",
        "cautious",
        "stepwise",
        "equal_finish",
    ]
    assert list(WRAPPERS) == [
        "limited", "every_n", "dead_band", "observe_only", "whole_granules",
    ]  # fmt: skip
