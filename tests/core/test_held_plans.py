"""The common plan: the newest one that all hold, recognised by its number and its sizes."""

import numpy as np
import pytest

from evenstep.core import Plan
from evenstep.core.held_plans import KEPT, CommonPlan, Held, mark_of, marks_of, newest_common


def plan(number, *sizes):
    return Plan(number, 0, np.array(sizes or (4, 4)))


def chosen(*holdings):
    """Return what each worker chooses, which must be the same, and None where there is none."""
    marks = np.stack([marks_of(plans) for plans in holdings])
    choices = [newest_common(plans, marks) for plans in holdings]
    numbers = {None if choice is None else choice.number for choice in choices}
    assert len(numbers) == 1, numbers
    return numbers.pop()


def descending(newest, count=KEPT):
    return [plan(number) for number in range(newest, newest - count, -1)]


@pytest.mark.parametrize("start", [0, 2**24 - 4, 2**24 + 1, 2**40, 2**53 - 100])
def test_newest_common_plan_is_chosen_however_large_the_numbers(start):
    newest = start + 20
    for behind in range(KEPT):
        assert chosen(descending(newest), descending(newest - behind)) == newest - behind


@pytest.mark.parametrize("behind", [KEPT, KEPT + 1, 4096, 2**24])
def test_there_is_none_where_one_keeps_what_the_other_has_forgotten(behind):
    assert chosen(descending(2**25), descending(2**25 - behind)) is None
    assert chosen(descending(5, 5), []) is None


def test_number_that_was_given_twice_is_no_common_plan():
    for first in range(1, 40):
        for second in range(first + 1, 40):
            same = [plan(7, first, 40 - first)], [plan(7, second, 40 - second)]
            assert chosen(*same) is None


def test_marks_survive_a_float32_and_tell_neighbours_apart():
    marks = [mark_of(plan(2**30 + number)) for number in range(4096)]
    assert [int(np.float32(mark)) for mark in marks] == marks
    assert all(len(set(marks[i : i + 32])) == 32 for i in range(4096 - 32))


WORKERS = ("a", "b")


def held(number, *sizes, workers=WORKERS):
    return Held(plan(number, *sizes), workers)


def exchanged(workers):
    """Let workers show what they hold, given as (common plan, plans held), and return choices."""
    rows = np.stack([common.show(plans) for common, plans in workers])
    # In any order, and as float64: that is what a loop of its own may make of them.
    rows = rows[::-1].astype(np.float64)
    choices = [common.choose(rows) for common, _ in workers]
    return [None if choice is None else choice.plan.sizes.tolist() for choice in choices]


def test_workers_choose_the_newest_plan_that_all_hold_and_then_keep_it():
    a, b = CommonPlan(), CommonPlan()
    old, new = held(6, 2, 6), held(7, 3, 5)
    assert exchanged([(a, [new, old]), (b, [old])]) == [[2, 6], [2, 6]]
    # Nothing in common any more but the plan in use, which both show.
    assert exchanged([(a, [held(9, 1, 7)]), (b, [new])]) == [[2, 6], [2, 6]]
    assert exchanged([(a, [new, old]), (b, [new])]) == [[3, 5], [3, 5]]


def test_smallest_newest_number_that_one_no_longer_keeps_divides_nobody():
    a, b = CommonPlan(), CommonPlan()
    exchanged([(a, [held(1, 4, 4)]), (b, [held(1, 4, 4)])])
    ahead = [held(n, 1, 7) for n in range(20, 12, -1)]
    assert exchanged([(a, ahead), (b, [held(3, 2, 6), held(1, 4, 4)])]) == [[4, 4], [4, 4]]


def test_plans_of_one_number_that_say_different_things_are_not_common():
    a, b = CommonPlan(), CommonPlan()
    assert exchanged([(a, [held(7, 3, 5)]), (b, [held(7, 5, 3)])]) == [None, None]
    same_sizes = held(7, 3, 5, workers=("a", "c"))
    assert exchanged([(a, [held(7, 3, 5)]), (b, [same_sizes])]) == [None, None]


def test_number_that_was_given_twice_is_chosen_alike_whichever_plan_is_in_use():
    a, b = CommonPlan(), CommonPlan()
    one, other = held(7, 3, 5), held(7, 5, 3)
    exchanged([(a, [one])]), exchanged([(b, [other])])
    first, second = exchanged([(a, [other]), (b, [one])])
    assert first == second is not None


def test_worker_that_holds_no_plan_holds_up_nobody_and_gets_none():
    a, b, fresh = CommonPlan(), CommonPlan(), CommonPlan()
    assert exchanged([(a, [held(7, 3, 5)]), (fresh, []), (b, [held(7, 3, 5)])]) == [
        [3, 5],
        None,
        [3, 5],
    ]


def test_worker_that_missed_an_exchange_never_uses_another_plan_than_the_others():
    a, b, away = CommonPlan(), CommonPlan(), CommonPlan()
    exchanged([(one, [held(1, 4, 4)]) for one in (a, b, away)])
    exchanged([(one, [held(2, 2, 6)]) for one in (a, b)])
    # It shows plan 1 as in use, and the others 2: there is no common plan, and most keep theirs.
    workers = [(away, []), (a, [held(3)]), (b, [held(3)])]
    assert exchanged(workers) == [None, [2, 6], [2, 6]]
