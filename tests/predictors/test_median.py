"""`median`, by hand."""

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.predictors import Median

FULL = np.ones(1)


def after(median, *speeds):
    for speed in speeds:
        median.observe(np.array([float(speed)]), FULL, FULL)
    return median.predict(FULL, FULL).item()


def test_median_of_what_there_is_until_the_window_is_full():
    median = Median(1)
    assert [after(median, speed) for speed in (10, 20, 60, 30, 12)] == [10, 15, 20, 25, 20]


def test_what_has_left_the_window_is_forgotten():
    median = Median(1, look_back=3)
    assert [after(median, speed) for speed in (90, 80, 1, 2, 3)] == [90, 85, 80, 2, 2]


def test_two_spikes_in_five_do_not_show():
    assert after(Median(1), 50, 5000, 51, 0.1, 50) == 50


def test_iteration_without_a_speed_takes_no_place_in_the_window():
    assert after(Median(1, look_back=3), 10, np.nan, 20, np.nan, np.nan, 30) == 20


def test_window_of_one_is_the_last_speed():
    median = Median(1, look_back=1)
    assert [after(median, speed) for speed in (10, 20, 5)] == [10, 20, 5]


def test_window_without_room_is_refused():
    with pytest.raises(InvalidSetting, match="look_back of median must be >= 1, got 0"):
        Median(1, look_back=0)
