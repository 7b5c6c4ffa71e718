"""The common plan: the newest one that all hold, told by its number and by what it says."""

import numpy as np
import pytest

from evenstep.core.held_plans import KEPT, mark_of, marks_of, newest_common
from evenstep.core.plan import Plan


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
