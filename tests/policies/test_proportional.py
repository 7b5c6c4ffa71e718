"""`proportional` (Alg. 1): in proportion to the predicted speeds, rounded exactly."""

import numpy as np
import pytest

from evenstep.core import Advice, Limits
from evenstep.errors import InvalidSetting
from evenstep.policies import Proportional
from tests.policies.examples import view_of


def decide(current, speeds, **more):
    decision, state = Proportional().plan(view_of(current, speeds=speeds, **more), None)
    assert state is None
    return decision


def test_sizes_are_in_proportion_to_the_speeds():
    decision = decide([32, 32, 32, 32], [10.0, 20.0, 30.0, 4.0])
    assert decision.sizes.tolist() == [20, 40, 60, 8]
    assert decision.predicted_times is not None
    assert decision.predicted_times.tolist() == [2.0] * 4
    assert (decision.reason, decision.advice) == ("predicted speeds", ())


def test_rounding_makes_the_slowest_earliest():
    # Shares 0.7, 4.15 and 4.15: the largest remainder would give (1, 4, 4), which takes 1 s.
    decision = decide([3, 3, 3], [1.0, 6.0, 6.0], limits=Limits.of(3, minimum=0))
    assert decision.sizes.tolist() == [0, 5, 4]


def test_it_goes_by_the_predicted_speeds_and_not_by_the_last_times():
    decision = decide([8, 8], [3.0, 1.0], times=[9.0, 0.1])
    assert decision.sizes.tolist() == [12, 4]


def test_the_total_is_that_of_the_plan_and_not_of_what_was_processed():
    decision = decide([8, 8], [3.0, 1.0], times=[0.1, np.nan], used=[5, 8])
    assert decision.sizes.tolist() == [12, 4]


def test_limits_bind():
    assert decide([8, 8], [3.0, 1.0], limits=Limits.of(2, cap=10)).sizes.tolist() == [10, 6]
    assert decide([8, 8], [99.0, 1.0], limits=Limits.of(2, 4)).sizes.tolist() == [12, 4]
    assert decide([8, 8], [5.0, 1.0], limits=Limits.of(2, 1, granularity=4)).sizes.tolist() == [
        12,
        4,
    ]


def test_a_worker_that_only_holds_the_others_up_is_advised_against():
    decision = decide([4, 4, 4], [8.0, 8.0, 0.5])
    assert decision.sizes.tolist() == [6, 5, 1]
    # 2 s with it; 6 samples at 8 per second without.
    assert decision.advice == (Advice(worker=2, predicted_time=0.75),)


def test_speeds_that_are_unknown_are_an_error():
    with pytest.raises(InvalidSetting, match=r"^speed .*> 0, got nan for worker 0$"):
        decide([8, 8], None)
