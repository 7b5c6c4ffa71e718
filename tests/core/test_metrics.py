"""Metrics, each worked out by hand."""

import numpy as np
import pytest

from evenstep.core import metrics

TIMES = np.array([[1.0, 3.0, 2.0], [4.0, 4.0, 4.0], [0.0, 5.0, 1.0]])
"""Iteration times 3, 4 and 5 s; 24 s of work within 36."""


def test_the_waiting_share_is_of_all_workers_time():
    assert metrics.waiting_share(TIMES) == pytest.approx(12 / 36, rel=1e-15)
    assert metrics.waiting_share(np.full((5, 2), 0.5)) == 0.0


def test_per_update_time_counts_one_gradient_per_worker():
    # (3 + 4 + 5) s in 3 iterations of 4 gradients each.
    assert metrics.per_update_time(np.array([3.0, 4.0, 5.0]), num_workers=4) == 1.0


def test_time_over_is_the_ratio_of_the_whole_times():
    assert metrics.time_over(np.array([1.0, 5.0]), np.array([2.0, 2.0])) == 1.5


def test_waste_is_the_share_lost_against_the_optimum():
    # ((2 - 1) + (3 - 3)) / (1 + 3), and not the mean of the ratios 1 and 0.
    assert metrics.waste(np.array([2.0, 3.0]), np.array([1.0, 3.0])) == 0.25
    assert metrics.waste(np.array([1.0, 3.0]), np.array([1.0, 3.0])) == 0.0


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([1.0, 1.0, 1.0], 0),
        ([1.05, 1.05, 1.05], 0),
        ([1.051, 1.05, 1.0], 1),
        ([2.0, 2.0, 1.0], 2),
        ([1.0, 1.0, 2.0], None),
        ([2.0, 2.0], None),
        ([], None),
        # 19 of 20 within suffice, 18 of 19 do not; and it must begin with one that is within.
        ([1.0] * 19 + [2.0], 0),
        ([1.0] * 18 + [2.0], None),
        ([1.0] * 10 + [2.0] + [1.0] * 9, 0),
        ([2.0] + [1.0] * 39 + [2.0], 1),
        ([2.0] * 5 + [1.0] * 95, 5),
        ([1.0, 2.0, 2.0] + [1.0] * 60, 0),
    ],
)
def test_settled_is_from_where_on_95_percent_are_within(times, expected):
    times = np.array(times)
    assert metrics.settling(times, np.ones(len(times)), within=0.05) == expected


def test_settling_is_relative_to_the_optimum_of_each_iteration():
    times, optimum = np.array([2.0, 4.1, 8.2]), np.array([1.0, 4.0, 8.0])
    assert metrics.settling(times, optimum, within=0.05) == 1
    assert metrics.settling(times, optimum, within=0.02) is None


def test_changes_are_counted_per_pair_of_iterations():
    sizes = np.array([[4, 4], [5, 3], [5, 3], [3, 5], [3, 5]])
    assert metrics.changes_per_100(sizes) == 50.0
    assert metrics.changes_per_100(sizes[1:3]) == 0.0
    assert metrics.changes_per_100(sizes[:2]) == 100.0


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_iteration_has_no_changes_to_count(count):
    assert metrics.changes_per_100(np.ones((count, 2), dtype=np.int64)) is None


def test_an_overrun_is_counted_per_worker_and_iteration():
    sizes = np.array([[8, 9], [9, 9], [10, 7]])
    assert metrics.overruns(sizes, np.array([8, 9])) == 2


def test_rmse_is_the_mean_over_workers_of_their_own():
    # Errors (3, 4) and (0, 0): roots of 12.5 and 0; pooled, it would be the root of 6.25.
    predicted = np.array([[3.0, 1.0], [4.0, 1.0]])
    actual = np.array([[0.0, 1.0], [0.0, 1.0]])
    assert metrics.rmse(predicted, actual) == pytest.approx(np.sqrt(12.5) / 2, rel=1e-15)


def test_rmse_leaves_out_what_is_unknown():
    predicted = np.array([[3.0, np.nan, np.nan], [np.nan, 2.0, np.nan], [5.0, 2.0, 1.0]])
    actual = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, np.nan, np.nan]])
    # Worker 0: errors 2 and 4; worker 1: error 1; worker 2 was never predicted.
    assert metrics.rmse(predicted, actual) == pytest.approx((np.sqrt(10) + 1) / 2, rel=1e-15)


def test_rmse_of_nothing_is_none():
    unknown = np.full((2, 2), np.nan)
    assert metrics.rmse(unknown, np.ones((2, 2))) is None
    assert metrics.rmse(np.ones((0, 2)), np.ones((0, 2))) is None
