"""Agreements on the plan of an iteration, and the plans that a worker holds."""

from itertools import permutations

import pytest

from evenstep.core import Plan, frozen
from evenstep.core.agreement import FAILED, KEPT_OUTCOMES, Agreements, Outcome
from evenstep.core.held_plans import KEPT, Held, Holding
from evenstep.errors import OutOfTurn
from tests.figures import numbers_in


def test_outcome_never_changes():
    agreements = Agreements()
    agreements.say("a", 0, 4)
    agreements.fail(0)
    agreements.say("b", 0, 4)
    agreements.settle(["a", "b"])
    assert agreements.outcome(0) == FAILED
    agreements.say("a", 1, 4)
    agreements.settle(["a"])
    agreements.fail(1)
    agreements.say("b", 1, 2)
    assert agreements.outcome(1) == Outcome(4)


@pytest.mark.parametrize("numbers", list(permutations([3, 5, 9])))
def test_workers_agree_on_the_newest_plan_that_everybody_holds(numbers):
    agreements = Agreements()
    for worker, number in zip("abc", numbers, strict=True):
        agreements.say(worker, 7, number)
    agreements.settle("abc")
    assert agreements.outcome(7) == Outcome(3)


def test_who_is_no_member_has_no_say():
    agreements = Agreements()
    agreements.say("a", 0, 4)
    agreements.say("gone", 0, 1)
    agreements.settle(["a"])
    assert agreements.outcome(0) == Outcome(4)


def test_old_outcomes_are_forgotten_and_count_as_failed():
    agreements = Agreements()
    agreements.say("late", 0, 1)
    for k in range(1, 100):
        agreements.say("a", k, k)
        agreements.settle(["a"])
    assert agreements.outcome(0) == agreements.outcome(99 - KEPT_OUTCOMES) == FAILED
    assert agreements.outcome(99) == Outcome(99)
    assert len(agreements._said) == 0 and len(agreements._outcomes) == KEPT_OUTCOMES


def test_newest_plans_are_held():
    holding = Holding()
    assert holding.newest is None
    for number in range(KEPT + 3):
        holding.keep(Held(Plan(number, number, frozen([3, 5])), ("a", "b")))
    assert len(holding) == KEPT
    newest = holding.newest
    assert newest is not None and newest.plan.number == KEPT + 2
    assert holding.numbered(3).size_of("b") == 5
    assert holding.numbered(3).size_of("c") == 0
    with pytest.raises(OutOfTurn) as refused:
        holding.numbered(2)
    assert numbers_in(str(refused.value)) == [*range(3, KEPT + 3), 2]


def test_agreement_fails_as_soon_as_a_member_has_gone_past_it():
    agreements = Agreements()
    agreements.say("a", 4, 3)
    agreements.go_on("b", 4)
    agreements.settle("ab")
    assert agreements.outcome(4) is None
    agreements.go_on("b", 5)
    agreements.settle("ab")
    assert agreements.outcome(4) == FAILED
    # Who comes back to an earlier iteration is waited for there again.
    agreements.say("a", 6, 3)
    agreements.go_on("b", 9)
    agreements.forget("b")
    agreements.settle("ab")
    assert agreements.outcome(6) is None
