"""The clock of a run on Ray: scaled real time that excludes pauses of the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Runs only inside `running`, so that evaluating a run does not add to its time.

    >>> seconds = iter([10.0, 12.0, 20.0])
    >>> clock = Clock(scale=0.5, read=lambda: next(seconds))
    >>> with clock.running():
    ...     pass
    >>> clock.now
    4.0
    """

    def __init__(self, scale: float = 1.0, read: Callable[[], float] = time.monotonic) -> None:
        """`scale`: real seconds per second of this clock."""
        self._scale = scale
        self._read = read
        self._before = 0.0
        """Real seconds until the last stop."""
        self._since: float | None = None
        """Time of the last start, while it runs."""

    @property
    def now(self) -> float:
        """Seconds of this clock."""
        running = 0.0 if self._since is None else self._read() - self._since
        return (self._before + running) / self._scale

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the clock inside the block."""
        self._since = self._read()
        try:
            yield
        finally:
            self._before += self._read() - self._since
            self._since = None
