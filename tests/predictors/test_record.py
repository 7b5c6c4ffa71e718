"""The history: a ring buffer of observations."""

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.predictors.record import CPU, MEMORY, SPEED, History

NAN = float("nan")


def added(history, *speeds):
    for row in speeds:
        speed = np.array(row)
        history.add(speed, speed / 1000, speed / 2000)
    return history


def speeds_of(observations):
    return np.exp(observations[:, :, SPEED]).round(3).tolist()


def test_latest_are_the_last_ones_oldest_first():
    history = added(History.of(1, 3), [10.0], [20.0], [30.0], [40.0])
    assert speeds_of(history.latest(2)) == [[30.0, 40.0]]
    assert speeds_of(history.latest(3)) == [[20.0, 30.0, 40.0]]


def test_a_speed_stays_with_the_usage_of_its_iteration():
    history = added(History.of(2, 4), [10.0, 50.0], [NAN, 60.0], [30.0, NAN])
    latest = np.exp(history.latest(2))
    np.testing.assert_allclose(latest[:, :, SPEED], [[10, 30], [50, 60]], rtol=1e-6)
    np.testing.assert_allclose(latest[:, :, CPU], latest[:, :, SPEED] / 1000, rtol=1e-6)
    np.testing.assert_allclose(
        latest[:, :, MEMORY], np.maximum(latest[:, :, SPEED] / 2000, 0.01), rtol=1e-6
    )


def test_places_not_yet_filled_are_missing():
    history = added(History.of(2, 3), [10.0, NAN])
    np.testing.assert_array_equal(np.isnan(history.latest(2)[:, :, SPEED]), [[1, 0], [1, 1]])
    assert history.count.tolist() == [1, 0]


def test_other_members_bring_an_empty_history_and_keep_theirs():
    history = added(History.of(2, 2), [10.0, 50.0], [20.0, 60.0]).remapped(np.array([1, -1]))
    assert history.count.tolist() == [2, 0]
    assert speeds_of(history.latest(2))[0] == [50.0, 60.0]


def test_no_usage_left_is_finite():
    history = History.of(1, 1)
    history.add(np.array([5.0]), np.zeros(1), np.zeros(1))
    assert np.isfinite(history.latest(1)).all()


def test_history_must_hold_something():
    with pytest.raises(InvalidSetting, match="history must hold >= 1 observations, got 0"):
        History.of(2, 0)
