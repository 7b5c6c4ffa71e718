"""The CUDA timer, on stand-ins for events: it must never make the host wait."""

from __future__ import annotations

import pytest
import torch

from evenstep.measure.timer import HostTimer, Measurement
from evenstep.pytorch.timers import CudaTimer, make_timer


class Device:
    """A device that runs behind the host, and its events."""

    def __init__(self):
        self.queued = 0.0
        """Milliseconds of work that the host has given to the device so far."""
        self.done = 0.0

    def event(self):
        return Event(self)


class Event:
    def __init__(self, device):
        self._device = device
        self.at = None

    def record(self):
        self.at = self._device.queued

    def query(self):
        return self.at <= self._device.done

    def elapsed_time(self, end):
        assert self.query()
        assert end.query(), "reading an event that has not passed raises in CUDA"
        return end.at - self.at

    def synchronize(self):
        raise AssertionError("the host must not wait")


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def timer(device):
    return CudaTimer(device.event)


def iterate(timer, device, milliseconds, samples):
    timer.start()
    timer.batch(samples)
    device.queued += milliseconds
    timer.stop()


def test_an_iteration_is_known_one_iteration_later(timer, device):
    iterate(timer, device, 5.0, 8)
    device.done = device.queued
    assert timer.finished() is None
    device.queued += 100.0
    iterate(timer, device, 7.0, 16)
    device.done = 5.0
    assert timer.finished() == Measurement(8, 0.005, age=1)
    device.done = device.queued
    iterate(timer, device, 1.0, 1)
    assert timer.finished() == Measurement(16, 0.007, age=1)


def test_an_iteration_that_the_device_has_not_come_to_has_no_time(timer, device):
    iterate(timer, device, 5.0, 8)
    iterate(timer, device, 7.0, 16)
    assert timer.finished() == Measurement(8, None, age=1)


def test_kept_pieces_add_up_and_pauses_do_not_count(timer, device):
    timer.start()
    timer.batch(8)
    device.queued += 5.0
    timer.pause()
    device.queued += 100.0
    timer.resume()
    device.queued += 1.0
    timer.keep()
    device.queued += 100.0
    iterate(timer, device, 7.0, 16)
    iterate(timer, device, 1.0, 1)
    device.done = device.queued
    assert timer.finished() == Measurement(24, 0.013, age=1)


def test_a_spoilt_piece_has_no_time(timer, device):
    timer.start()
    timer.batch(8)
    timer.spoil()
    timer.stop()
    iterate(timer, device, 7.0, 16)
    iterate(timer, device, 1.0, 1)
    device.done = device.queued
    assert timer.finished() == Measurement(8, None, age=2)
    assert timer.finished() == Measurement(16, 0.007, age=1)


def test_iteration_with_a_spoilt_earlier_piece_has_no_time(timer, device):
    timer.start()
    timer.batch(8)
    device.queued += 5.0
    timer.spoil()
    timer.keep()
    iterate(timer, device, 7.0, 16)
    iterate(timer, device, 1.0, 1)
    iterate(timer, device, 1.0, 1)
    device.done = device.queued
    assert timer.finished() == Measurement(24, None, age=2)
    # And the next iteration is not spoilt by it.
    assert timer.finished() == Measurement(1, 0.001, age=1)


def test_timer_fits_the_device(monkeypatch):
    assert isinstance(make_timer(torch.device("cpu")), HostTimer)
    assert isinstance(make_timer(torch.device("cuda")), CudaTimer)
