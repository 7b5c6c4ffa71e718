"""The transfer timer: batch processing time with the worker's own pull and push."""

from __future__ import annotations

from dataclasses import replace

from evenstep.measure.timer import HostTimer, Measurement, Timer


class TransferTimer:
    """Adds the worker's transfer times to the time of each iteration.

    The pull that precedes an iteration is part of it, as in the paper. The time of the push cannot
    be separated from waiting, and is taken to be that of the pull: the same bytes over the same
    link.

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
        self.add = inner.add
        self.pause = inner.pause
        self.resume = inner.resume
        self.spoil = inner.spoil
        self.keep = inner.keep
        self.stop = inner.stop
        self.reported = inner.reported

    def pulled(self, seconds: float) -> None:
        """Record how long the pull of the coming iteration's parameters took."""
        self._transfers = 2 * seconds

    def finished(self) -> Measurement | None:
        """Return the newest iteration that is measured, once."""
        done = self._inner.finished()
        if done is None or done.time is None:
            return done
        return replace(done, time=done.time + self._transfers)
