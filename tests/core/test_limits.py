"""Limits: which sizes they leave, and clear errors where they leave none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.core import UNLIMITED, Limits, as_ints, check_feasible
from evenstep.errors import InfeasibleLimits, InvalidSetting
from tests.figures import numbers_in


def bounds(limits, total):
    lo, hi = limits.bounds(total)
    return lo.tolist(), hi.tolist()


def test_one_number_holds_for_all_workers():
    limits = Limits.of(3, minimum=2, cap=9, granularity=2)
    assert limits.num_workers == 3
    assert limits.minimum.tolist() == [2, 2, 2]
    assert limits.cap.tolist() == [9, 9, 9]
    assert limits.granularity == 2


def test_a_worker_has_at_least_one_sample_and_no_cap_unless_said_otherwise():
    limits = Limits.of(2)
    assert (limits.minimum.tolist(), limits.cap.tolist()) == ([1, 1], [UNLIMITED] * 2)
    assert limits.granularity == 1
    assert float(UNLIMITED) == UNLIMITED < float(UNLIMITED) + 2


def test_bounds_are_rounded_inwards_to_the_granularity():
    limits = Limits(np.array([0, 1, 4, 5]), np.array([3, 8, 11, UNLIMITED]), granularity=4)
    assert bounds(limits, 28) == ([0, 4, 4, 8], [0, 8, 8, 28])


def test_nobody_can_have_more_than_the_total():
    assert bounds(Limits.of(3, minimum=0), 7) == ([0, 0, 0], [7, 7, 7])


def test_bounds_that_just_suffice_are_feasible():
    assert bounds(Limits.of(3, minimum=4, cap=[9, 4, 4]), 12) == ([4, 4, 4], [9, 4, 4])
    assert bounds(Limits.of(3, cap=[5, 4, 3]), 12) == ([1, 1, 1], [5, 4, 3])


@pytest.mark.parametrize(
    ("limits", "total", "what", "numbers"),
    [
        (Limits.of(3, minimum=5), 14, "minimum", [3, 15, 14]),
        (Limits.of(2, cap=[7, 6]), 14, "caps", [2, 13, 14]),
        (Limits.of(2, cap=7, granularity=4), 16, "caps", [2, 8, 16]),
        (Limits.of(2, granularity=4), 10, "granularity", [4, 10]),
    ],
)
def test_limits_without_any_plan_are_infeasible(limits, total, what, numbers):
    with pytest.raises(InfeasibleLimits, match=what) as caught:
        limits.bounds(total)
    assert numbers_in(str(caught.value)) == numbers


@pytest.mark.parametrize(
    ("minimum", "cap", "granularity"), [([1, 6, 1], [9, 5, 9], 1), ([1, 5, 1], [9, 7, 9], 4)]
)
def test_a_cap_below_the_minimum_names_the_worker(minimum, cap, granularity):
    limits = Limits(np.array(minimum), np.array(cap), granularity)
    with pytest.raises(InfeasibleLimits) as caught:
        limits.bounds(16)
    assert numbers_in(str(caught.value)) == [granularity, cap[1], 1]


@pytest.mark.parametrize(
    ("make", "what", "numbers"),
    [
        (lambda: Limits.of(3, minimum=[1, -2, 1]), "^minimum", [0, -2, 1]),
        (lambda: Limits.of(3, cap=[1, 2, -3]), "^batch size cap", [0, -3, 2]),
        (lambda: Limits.of(3, granularity=0), "^granularity", [1, 0]),
        (lambda: Limits(as_ints([1, 1]), as_ints([9, 9, 9])), r"\(2,\) and \(3,\)$", [2, 3]),
        (lambda: Limits(as_ints(1), as_ints(9)), r"\(\) and \(\)$", []),
    ],
)
def test_limits_that_cannot_be_are_refused(make, what, numbers):
    with pytest.raises(InvalidSetting, match=what) as caught:
        make()
    assert numbers_in(str(caught.value)) == numbers


def test_tightened_limits_satisfy_both():
    limits = Limits(np.array([1, 4, 2]), np.array([8, 20, 6]), granularity=4)
    tight = limits.tighten(minimum=[0, 3, 5], cap=10, granularity=6)
    assert tight.minimum.tolist() == [1, 4, 5]
    assert tight.cap.tolist() == [8, 10, 6]
    assert tight.granularity == 12
    assert limits.minimum.tolist() == [1, 4, 2]
    assert limits.cap.tolist() == [8, 20, 6]


def test_tightening_by_nothing_changes_nothing():
    limits = Limits(np.array([1, 4]), np.array([8, 20]), granularity=4)
    same = limits.tighten()
    assert (same.minimum.tolist(), same.cap.tolist(), same.granularity) == ([1, 4], [8, 20], 4)


def test_limits_can_be_selected_by_position():
    chosen = Limits(np.array([1, 2, 3]), np.array([7, 8, 9]), 2).select(np.array([2, 0]))
    assert (chosen.minimum.tolist(), chosen.cap.tolist()) == ([3, 1], [9, 7])
    assert chosen.granularity == 2


sizes = st.lists(st.integers(0, 12), min_size=1, max_size=4)


@given(data=st.data(), lo=sizes, total=st.integers(0, 40))
def test_feasible_is_what_some_sizes_satisfy(data, lo, total):
    room = st.lists(st.integers(0, 12), min_size=len(lo), max_size=len(lo))
    hi = [low + more for low, more in zip(lo, data.draw(room), strict=True)]
    if sum(lo) <= total <= sum(hi):
        check_feasible(total, np.array(lo), np.array(hi))
    else:
        with pytest.raises(InfeasibleLimits) as refused:
            check_feasible(total, np.array(lo), np.array(hi))
        reached = sum(lo) if total < sum(lo) else sum(hi)
        assert numbers_in(str(refused.value)) == [len(lo), reached, total]
