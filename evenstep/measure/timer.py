"""The iteration timer: batch processing time that waiting cannot fool.

An iteration's own work begins when its batch is asked for and ends when the last gradient is
ready to be sent; waiting for others comes after that, and whatever the user's loop does between
two iterations comes before it. Neither counts.
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
    """One iteration's own work."""

    batch_size: float
    """x: samples processed, over all micro-batches that went into one exchange of gradients; in
    average samples where they are unequal work."""
    time: float | None
    """t, in seconds; None where it cannot be trusted."""
    age: int = 0
    """Iterations that have ended since: 0 where this is the last one, more on a device that runs
    ahead of its host."""


class Timer(Protocol):
    """Measures iterations; on a device that runs ahead, `finished` answers some later."""

    def start(self) -> None:
        """A batch is asked for: a new piece of work begins."""
        ...

    def batch(self, batch_size: float) -> None:
        """The batch is there, with so many samples, or average samples."""
        ...

    def pause(self) -> None:
        """Something that is not the worker's own work begins, such as waiting for others."""
        ...

    def resume(self) -> None:
        """It is over: a piece of work that was interrupted goes on."""
        ...

    def spoil(self) -> None:
        """The time of this piece of work cannot be trusted."""
        ...

    def keep(self) -> None:
        """The piece is done and its gradient accumulates: the next one continues the work."""
        ...

    def stop(self) -> None:
        """The last gradient is ready: the work ends."""
        ...

    def reported(self) -> None:
        """What `finished` told has been made a report of, which was work, too."""
        ...

    def finished(self) -> Measurement | None:
        """Return the newest iteration that is measured, once; None where there is none."""
        ...


class HostTimer:
    """Measures by the host's clock, for devices that the host waits for.

    Reporting comes after what it reports, so what it took is taken to be what it took the last
    time: on a slow worker that is as long as some samples.

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
