"""Bandwidth: a token bucket. Times are given to it."""

from __future__ import annotations

import math
import threading

BURST = 0.1
"""Seconds of saved-up bandwidth that may be used at once."""


class Bandwidth:
    """Says how long to wait so that no more than so many bytes a second go by.

    >>> limited = Bandwidth(1000)
    >>> limited.reserve(600, now=0.0), limited.reserve(500, now=0.0), limited.reserve(1, now=9.0)
    (0.5, 1.0, 0.0)
    """

    def __init__(self, rate: float | None) -> None:
        self._rate = math.inf if rate is None else float(rate)
        self._free_at = -math.inf
        """When all bytes that were reserved have gone by."""
        self._lock = threading.Lock()

    def reserve(self, num_bytes: int, now: float) -> float:
        """Take so many bytes, and return the seconds until they may be on their way."""
        with self._lock:
            begin = max(self._free_at, now - BURST)
            self._free_at = begin + num_bytes / self._rate
            return max(0.0, self._free_at - now)
