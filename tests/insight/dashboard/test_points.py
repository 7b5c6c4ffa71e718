"""Points and courses: whatever the length of a run, means and ranges are those of all its rows."""

import numpy as np
import pytest

from evenstep.insight.dashboard.points import Points
from evenstep.insight.dashboard.run_history import RunHistory, num_points


@pytest.mark.parametrize("length", [1, 7, 8, 9, 100, 1000])
def test_points_hold_means_and_ranges_of_groups_of_rows(length):
    rows = np.random.default_rng(length).uniform(0, 1, (length, 3))
    rows[rows < 0.2] = np.nan
    points = Points(3, capacity=8)
    for row in rows:
        points.add(row)
    groups = [rows[i : i + points.every] for i in range(0, length, points.every)]
    assert len(points) == len(groups) <= 8
    with np.errstate(all="ignore"):
        for i, group in enumerate(groups):
            known = [column[~np.isnan(column)] for column in group.T]
            means = [column.mean() if len(column) else np.nan for column in known]
            np.testing.assert_allclose(points.means[i], means)
            least = [column.min() if len(column) else np.nan for column in known]
            most = [column.max() if len(column) else np.nan for column in known]
            np.testing.assert_array_equal(points.smallest[i], least)
            np.testing.assert_array_equal(points.largest[i], most)


def test_rows_left_out_are_rows_of_which_nothing_is_known():
    told, skipped = Points(1, capacity=4), Points(1, capacity=4)
    for _ in range(9):
        told.add(np.array([np.nan]))
    skipped.skip(9)
    for points in (told, skipped):
        points.add(np.array([2.0]))
    assert (told.every, len(told)) == (skipped.every, len(skipped)) == (4, 3)
    np.testing.assert_array_equal(told.means, skipped.means)


def test_a_course_keeps_its_size_however_long_the_run_gets():
    history = RunHistory(2)
    whole = dict.fromkeys(("iteration_times", "waiting_shares", "plain", "optimum"), 1.0)
    for k in range(3 * num_points(2)):
        history.add(k, whole, {"cpu": None if k < 5 else np.array([0.25, 0.75])})
    cpu = history.of_workers.get("cpu")
    assert cpu is not None
    assert len(cpu) == len(history.iterations) == len(history.whole["plain"]) <= num_points(2)
    assert history.every == 4
    np.testing.assert_array_equal(cpu.means[-1], [0.25, 0.75])
    assert np.isnan(cpu.means[0]).all()


def test_who_joins_is_unknown_before():
    history = RunHistory(1)
    whole = dict.fromkeys(("iteration_times", "waiting_shares", "plain", "optimum"), 1.0)
    history.add(0, whole, {"speeds": np.array([3.0])})
    history.widen(2)
    history.add(1, whole, {"speeds": np.array([4.0, 5.0])})
    speeds = history.of_workers.get("speeds")
    assert speeds is not None
    np.testing.assert_array_equal(speeds.means, [[3.0, np.nan], [4.0, 5.0]])
