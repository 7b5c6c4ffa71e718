"""The iteration timer: measures batch processing times without waiting times.

The work of an iteration begins when its batch is requested and ends when the last gradient is
ready to be sent. Waiting for others comes after that, and code of the user's loop between two
iterations comes before; neither counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Clock = Callable[[], float]


@dataclass(frozen=True)
class Measurement:
    """The measured work of one iteration."""

    batch_size: float
    """x: samples processed, over all micro-batches that went into one exchange of gradients; in
    average samples where they are unequal work."""
    time: float | None
    """t, in seconds; None if it cannot be trusted."""
    age: int = 0
    """Iterations that have ended since: 0 if this is the last one, more on a device that runs
    ahead of its host."""


class Timer(Protocol):
    """Measures iterations; on an asynchronous device, `finished` returns them some later."""

    def start(self) -> None:
        """Begin a new piece of work: a batch is requested."""
        ...

    def batch(self, batch_size: float) -> None:
        """Record the size of the batch, in samples or average samples."""
        ...

    def add(self, seconds: float) -> None:
        """Count time that was spent on the batch before this piece of work began."""
        ...

    def pause(self) -> None:
        """Stop counting, for example while the worker waits for others."""
        ...

    def resume(self) -> None:
        """Continue a piece of work after `pause`."""
        ...

    def spoil(self) -> None:
        """Mark the time of this piece of work as wrong."""
        ...

    def keep(self) -> None:
        """End the piece of a micro-batch; the next one continues the work of the iteration."""
        ...

    def stop(self) -> None:
        """End the work of the iteration: the last gradient is ready."""
        ...

    def reported(self) -> None:
        """Record that the report on the last measurement is made, which counts as work too."""
        ...

    def finished(self) -> Measurement | None:
        """Return the newest measured iteration, once; None if there is none."""
        ...


class HostTimer:
    """Measures with the host's clock, for devices that the host waits for.

    Making a report takes time that the same report cannot contain, so each measurement includes
    the time of the last report: on a slow worker it is as long as some samples take.

    >>> clock = iter([1.0, 1.5, 1.5]).__next__
    >>> timer = HostTimer(clock)
    >>> timer.start(); timer.batch(32); timer.stop()
    >>> timer.finished()
    Measurement(batch_size=32, time=0.5, age=0)
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._begun: float | None = None
        self._is_paused = False
        self._samples: float = 0
        self._time = 0.0
        self._kept_samples: float = 0
        self._kept_time = 0.0
        self._stopped = 0.0
        self._reporting = 0.0
        self._finished: Measurement | None = None

    def start(self) -> None:
        self._samples, self._time, self._is_paused = 0, 0.0, False
        self._begun = self._clock()

    def batch(self, batch_size: float) -> None:
        self._samples = batch_size

    def add(self, seconds: float) -> None:
        self._time += seconds

    def pause(self) -> None:
        if self._begun is not None:
            self._time += self._clock() - self._begun
            self._begun, self._is_paused = None, True

    def resume(self) -> None:
        if self._is_paused:
            self._begun, self._is_paused = self._clock(), False

    def spoil(self) -> None:
        self._time = math.nan

    def keep(self) -> None:
        self.pause()
        self._kept_samples += self._samples
        self._kept_time += self._time
        self._samples, self._time, self._is_paused = 0, 0.0, False

    def stop(self) -> None:
        self.keep()
        samples, elapsed = self._kept_samples, self._kept_time
        self._kept_samples, self._kept_time = 0, 0.0
        self._stopped = self._clock()
        self._finished = Measurement(samples, elapsed + self._reporting if elapsed > 0 else None)

    def reported(self) -> None:
        self._reporting = self._clock() - self._stopped

    def finished(self) -> Measurement | None:
        measurement, self._finished = self._finished, None
        return measurement
