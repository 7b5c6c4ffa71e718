"""Whole granules: batches of padded size that keep the total."""

import numpy as np
import pytest

from evenstep.core import Limits
from evenstep.errors import InfeasibleLimits
from evenstep.policies import EqualFinish, Even, ObserveOnly, Proportional, WholeGranules
from evenstep.policies.whole_granules import cut_short
from tests.policies.examples import play, view_of


def padded(sizes, granularity=8):
    return -(-np.asarray(sizes) // granularity) * granularity


def test_all_batches_but_the_largest_are_of_whole_granules():
    policy = WholeGranules(Proportional(), 8)
    decision, _ = policy.plan(view_of([50, 50], speeds=[1.0, 3.0]), None)
    assert decision.sizes.tolist() == [24, 76]
    # Predicted times are those of the padded batches.
    assert decision.predicted_times is not None
    assert decision.predicted_times.tolist() == pytest.approx([24, 80 / 3])


def test_a_staircase_is_climbed_to_its_best_plan_and_not_left_again():
    per_granule = np.array([0.01, 0.03])

    def stairs(k, sizes):
        return 0.005 + per_granule * padded(sizes) / 8

    decisions = play(
        _Reporting(WholeGranules(EqualFinish(), 8)), stairs, start=[50, 50], iterations=40
    )
    assert all(int(decision.sizes.sum()) == 100 for decision in decisions)
    settled = [decision.sizes.tolist() for decision in decisions[-20:]]
    # Thirteen granules: ten take 105 ms, and three 95 ms; none of the others is earlier.
    assert settled == [[76, 24]] * 20


class _Reporting:
    """A policy whose workers report padded sizes, as an adapter that pads does."""

    def __init__(self, inner):
        self._inner, self.uses_speeds = inner, inner.uses_speeds
        self.init, self.remap = inner.init, inner.remap

    def plan(self, view, state):
        sizes = np.where(view.reports.observed, padded(view.reports.batch_sizes), 0)
        view.reports.batch_sizes[:] = sizes
        return self._inner.plan(view, state)


def test_a_plan_that_stays_is_the_same_plan():
    policy = WholeGranules(Even(), 8)
    first, _ = policy.plan(view_of([18, 18]), None)
    again, _ = policy.plan(view_of(first.sizes), None)
    assert first.sizes.tolist() == again.sizes.tolist() == [20, 16]


def test_what_is_proposed_keeps_the_total_too():
    policy = WholeGranules(ObserveOnly(Proportional()), 8)
    decision, _ = policy.plan(view_of([50, 50], speeds=[1.0, 3.0]), None)
    assert decision.sizes.tolist() == [52, 48]
    assert decision.proposed is not None and decision.proposed.tolist() == [24, 76]


def test_no_batch_is_cut_below_its_minimum():
    limits = Limits.of(3, minimum=6, granularity=8)
    assert cut_short(np.array([8, 8, 8]), 19, limits).tolist() == [6, 6, 7]


def test_granules_that_are_too_large_for_the_workers_are_refused():
    with pytest.raises(InfeasibleLimits, match="of 3 workers add up to 24, more than the total 16"):
        WholeGranules(Even(), 8).plan(view_of([4, 4, 4]), None)
