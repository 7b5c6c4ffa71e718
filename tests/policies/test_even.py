"""`even` is plain BSP."""

from evenstep.core import Limits
from evenstep.policies import Even
from tests.policies.examples import view_of


def sizes_with(limits, current=(30, 1, 1)):
    decision, state = Even().plan(view_of(current, limits=limits), None)
    assert state is None
    return decision.sizes.tolist()


def test_sizes_differ_by_at_most_one_the_larger_ones_first():
    assert sizes_with(Limits.of(3)) == [11, 11, 10]


def test_sizes_are_as_equal_as_the_limits_allow():
    assert sizes_with(Limits.of(3, cap=[4, 99, 99])) == [4, 14, 14]
    assert sizes_with(Limits.of(3, minimum=[1, 1, 20])) == [6, 6, 20]
    assert sizes_with(Limits.of(3, granularity=8)) == [16, 8, 8]


def test_times_are_predicted_from_the_speeds_where_there_are_any():
    decision, _ = Even().plan(view_of([3, 1], speeds=[4.0, 8.0]), None)
    assert decision.predicted_times is not None
    assert decision.predicted_times.tolist() == [0.5, 0.25]
