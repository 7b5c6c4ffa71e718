"""The transfer timer: a worker's own computing, with its own pull and push."""

from __future__ import annotations

from dataclasses import replace

from evenstep.measure.timer import HostTimer, Measurement, Timer


class TransferTimer:
    """Adds to the time of each iteration what the worker needed to fetch its parameters.

    The pull that precedes an iteration is part of it, as in the paper. What the push took cannot be
    told from waiting, so it is taken to be as long: the same bytes over the same line.

    >>> timer = TransferTimer(HostTimer(iter([1.0, 1.5, 1.5]).__next__))
    >>> timer.pulled(0.125)
    >>> timer.start(); timer.batch(32); timer.stop()
    >>> timer.finished()
    Measurement(batch_size=32, time=0.75, age=0)
    """

    def __init__(self, inner: Timer | None = None) -> None:
        inner = inner or HostTimer()
        self._inner = inner
        self._transfers = 0.0
        self.start = inner.start
        self.batch = inner.batch
        self.pause = inner.pause
        self.resume = inner.resume
        self.spoil = inner.spoil
        self.keep = inner.keep
        self.stop = inner.stop
        self.reported = inner.reported

    def pulled(self, seconds: float) -> None:
        """Take note of how long the parameters of the coming iteration took."""
        self._transfers = 2 * seconds

    def finished(self) -> Measurement | None:
        """Return the newest iteration that is measured, once."""
        done = self._inner.finished()
        if done is None or done.time is None:
            return done
        return replace(done, time=done.time + self._transfers)
