"""The host timer: the sum of pieces of work, without the time between them."""

import pytest

from evenstep.measure.timer import HostTimer, Measurement


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def timer(clock):
    return HostTimer(clock)


def work(timer, clock, seconds, samples):
    timer.start()
    timer.batch(samples)
    clock.now += seconds


def test_reporting_counts_as_long_as_it_took_the_last_time(timer, clock):
    work(timer, clock, 2.0, 8)
    timer.stop()
    clock.now += 0.25
    assert timer.finished() == Measurement(8, 2.0)
    timer.reported()
    clock.now += 50.0
    work(timer, clock, 2.0, 8)
    timer.stop()
    assert timer.finished() == Measurement(8, 2.25)


def test_time_between_iterations_does_not_count(timer, clock):
    work(timer, clock, 2.0, 8)
    timer.stop()
    clock.now += 50.0
    assert timer.finished() == Measurement(8, 2.0)
    work(timer, clock, 3.0, 4)
    timer.stop()
    assert timer.finished() == Measurement(4, 3.0)


def test_a_measurement_is_given_once(timer, clock):
    work(timer, clock, 2.0, 8)
    timer.stop()
    timer.finished()
    assert timer.finished() is None


def test_work_that_was_given_up_does_not_count(timer, clock):
    work(timer, clock, 9.0, 8)
    work(timer, clock, 2.0, 4)
    timer.stop()
    assert timer.finished() == Measurement(4, 2.0)


def test_work_given_up_in_a_pause_does_not_count(timer, clock):
    work(timer, clock, 9.0, 8)
    timer.pause()
    work(timer, clock, 2.0, 4)
    timer.resume()
    timer.stop()
    assert timer.finished() == Measurement(4, 2.0)


def test_kept_pieces_add_up(timer, clock):
    work(timer, clock, 2.0, 8)
    timer.keep()
    clock.now += 50.0
    work(timer, clock, 3.0, 4)
    timer.stop()
    assert timer.finished() == Measurement(12, 5.0)
    work(timer, clock, 1.0, 1)
    timer.stop()
    assert timer.finished() == Measurement(1, 1.0)


def test_pauses_do_not_count(timer, clock):
    work(timer, clock, 2.0, 8)
    timer.pause()
    clock.now += 50.0
    timer.resume()
    clock.now += 1.0
    timer.stop()
    assert timer.finished() == Measurement(8, 3.0)


def test_a_spoilt_piece_has_no_time(timer, clock):
    work(timer, clock, 2.0, 8)
    timer.spoil()
    timer.keep()
    work(timer, clock, 2.0, 8)
    timer.stop()
    assert timer.finished() == Measurement(16, None)
    work(timer, clock, 2.0, 8)
    timer.stop()
    assert timer.finished() == Measurement(8, 2.0)


def test_a_pause_outside_of_an_iteration_begins_none(timer, clock):
    work(timer, clock, 2.0, 8)
    timer.stop()
    timer.pause()
    timer.resume()
    clock.now += 50.0
    timer.stop()
    assert timer.finished() == Measurement(0, None)
