"""Plans cannot be changed, and their gradient weights undo the mean of unequal batches."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.core.plan import Advice, Decision, Plan


def test_the_sizes_of_a_plan_cannot_be_changed():
    plan = Plan(number=0, iteration=0, sizes=np.array([8, 24]))
    with pytest.raises(ValueError, match="read-only"):
        plan.sizes[0] = 9
    with pytest.raises(FrozenInstanceError):
        plan.sizes = np.array([1, 1])  # type: ignore[misc]
    assert plan.sizes.tolist() == [8, 24]


def test_a_plan_does_not_follow_the_array_that_it_was_made_from():
    sizes = np.array([8, 24])
    plan = Plan(number=0, iteration=0, sizes=sizes)
    sizes[0] = 0
    assert plan.sizes.tolist() == [8, 24]


def test_a_replaced_plan_is_read_only_too():
    plan = Plan(number=0, iteration=0, sizes=np.array([8, 24]))
    again = replace(plan, number=1, sizes=np.array([16, 16]))
    assert (again.number, again.sizes.tolist()) == (1, [16, 16])
    assert not again.sizes.flags.writeable


def test_the_total_is_the_sum_of_the_sizes():
    assert Plan(0, 0, np.array([8, 0, 24])).total == 32


def test_gradient_weights_are_the_papers():
    weights = Plan(0, 0, np.array([8, 0, 24, 32])).gradient_weights
    assert weights.tolist() == [0.5, 0.0, 1.5, 2.0]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20).filter(any))
def test_gradient_weights_average_to_one(sizes):
    assert np.isclose(Plan(0, 0, np.array(sizes)).gradient_weights.mean(), 1.0, rtol=1e-12)


@given(st.data(), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_the_weighted_mean_over_workers_is_the_mean_over_samples(data, sizes):
    # Each worker's gradient is the mean over its own samples; the all-reduce takes their mean.
    total = sum(sizes)
    samples = data.draw(st.lists(st.floats(-10, 10), min_size=total, max_size=total))
    own = np.split(np.array(samples), np.cumsum(sizes)[:-1])
    plan = Plan(0, 0, np.array(sizes))
    reduced = np.mean([w * part.mean() for w, part in zip(plan.gradient_weights, own, strict=True)])
    assert np.isclose(reduced, np.mean(samples), rtol=1e-9, atol=1e-9)


def test_a_decision_says_nothing_that_it_was_not_told():
    decision = Decision(np.array([1, 2]))
    assert (decision.reason, decision.phase, decision.advice) == ("", "", ())
    assert decision.predicted_times is None
    assert decision.proposed is None


def test_advice_is_to_remove_a_worker():
    assert Advice(3, 0.5) == Advice(worker=3, predicted_time=0.5, kind="remove")
