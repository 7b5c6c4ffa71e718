"""LateTimes: late times go into the reports of their own iteration."""

import numpy as np

from evenstep.core import Reports
from evenstep.core.late_times import LONGEST_WAIT, LateTimes

NAN = np.nan


def reports_of(iteration, sizes, measured=None):
    """Make the reports at the end of an iteration; a batch takes a tenth of a second a sample."""
    x = np.array(sizes)
    times = np.where(x > 0, x / 10, NAN)
    ones = np.ones(len(x))
    at = None if measured is None else np.array(measured)
    return Reports(iteration + 1, x, times, ones, ones, ones, measured=at)


def told(complete):
    return [(about, reports.batch_sizes.tolist()) for reports, about in complete]


def test_reports_in_time_come_back_at_once():
    attribution: LateTimes[str] = LateTimes()
    for k in range(3):
        reports = reports_of(k, [4, 8])
        assert attribution.add(reports, f"{k}") == [(reports, f"{k}")]
    assert attribution.rest() == []


def test_reports_wait_for_the_times_of_their_own_iteration():
    attribution: LateTimes[str] = LateTimes()
    assert told(attribution.add(reports_of(0, [1, 0], [0, -1]), "0")) == []
    assert told(attribution.add(reports_of(1, [2, 20], [1, 0]), "1")) == [("0", [1, 20])]
    assert told(attribution.add(reports_of(2, [3, 30], [2, 1]), "2")) == [("1", [2, 30])]
    assert told(attribution.rest()) == [("2", [3, 0])]


def test_worker_without_a_time_of_a_later_iteration_is_waited_for_no_more():
    attribution: LateTimes[str] = LateTimes()
    assert told(attribution.add(reports_of(0, [1, 0], [0, -1]), "0")) == []
    # Its time of iteration 0 cannot be trusted, which it says with the iteration and no time.
    assert told(attribution.add(reports_of(1, [2, 0], [1, 0]), "1")) == [("0", [1, 0])]


def test_worker_that_says_nothing_holds_up_a_few_iterations_only():
    attribution: LateTimes[int] = LateTimes()
    complete = [told(attribution.add(reports_of(k, [1, 0], [k, -1]), k)) for k in range(10)]
    assert complete[:LONGEST_WAIT] == [[]] * LONGEST_WAIT
    assert complete[LONGEST_WAIT:] == [[(k, [1, 0])] for k in range(10 - LONGEST_WAIT)]


def test_training_that_goes_back_gets_no_time_of_before():
    attribution: LateTimes[str] = LateTimes()
    attribution.add(reports_of(6, [1], [5]), "6")
    assert told(attribution.add(reports_of(6, [9], [5]), "6 again")) == [("6", [0])]
    assert told(attribution.add(reports_of(7, [8], [6]), "7")) == [("6 again", [8])]
