"""Patience: how long the workers of a gradient exchange wait for a coordinator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from evenstep.measure.timer import Clock

LONGEST = 10.0
"""Seconds: all workers come to a boundary together, so its plan comes soon or not at all. Process
groups wait longer than this for a worker that does not come."""
SHORTEST = 0.1


class Patience:
    """Waits half as long each time that it was in vain; in full again once it was not.

    >>> clock = iter([0.0, 8.0, 8.0, 8.5]).__next__
    >>> patience = Patience(8.0, clock)
    >>> with patience.wait() as seconds:
    ...     seconds
    8.0
    >>> with patience.wait() as seconds:
    ...     seconds
    4.0
    >>> patience.seconds
    8.0
    """

    def __init__(self, timeout: float, clock: Clock = time.monotonic) -> None:
        self._full = min(timeout, LONGEST)
        self._clock = clock
        self.seconds = self._full
        """How long to wait the next time."""

    @contextmanager
    def wait(self) -> Iterator[float]:
        """Yield how long to wait now, and see whether it was in vain."""
        begun = self._clock()
        try:
            yield self.seconds
        finally:
            in_vain = self._clock() - begun >= self.seconds
            halved = max(self.seconds / 2, min(SHORTEST, self._full))
            self.seconds = halved if in_vain else self._full
