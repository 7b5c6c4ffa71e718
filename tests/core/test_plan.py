"""Plans cannot be changed."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from evenstep.core import Advice, Decision, Plan


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


def test_a_decision_says_nothing_that_it_was_not_told():
    decision = Decision(np.array([1, 2]))
    assert (decision.reason, decision.phase, decision.advice) == ("", "", ())
    assert decision.predicted_times is None
    assert decision.proposed is None


def test_advice_is_to_remove_a_worker():
    assert Advice(3, 0.5) == Advice(worker=3, predicted_time=0.5, kind="remove")


def test_a_plan_is_shown_in_one_line():
    plan = Plan(3, 40, np.array([89, 21, 12, 6]), "faster <now>")
    assert repr(plan) == "Plan(3 from iteration 40: 89/21/12/6 of 128, faster <now>)"
    assert repr(Plan(0, 0, np.arange(1000))).count("/") == 12


def test_a_plan_is_a_table_in_a_notebook():
    shown = Plan(3, 40, np.array([24, 8]), "faster <now>")._repr_html_()
    assert "faster &lt;now&gt;)</p><table>" in shown
    assert "<td>0</td><td>24</td><td>75.0%</td>" in shown
    many = Plan(0, 0, np.arange(1000))._repr_html_()
    assert many.count("<tr>") == 33 and many.endswith("<p>and 968 more</p>")
