"""Limits of an agent's process: bandwidth, priority, memory, and an end with its parent.

An agent leaves network and processors to the training. Bandwidth is limited by a token bucket, to
which times are given.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import threading

BURST = 0.1
"""Seconds of saved-up bandwidth that may be used at once."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENAS = -1, -3, -8
"""The numbers of glibc's settings (malloc.h)."""
_LARGEST = 32 * 2**20
"""Bytes of the largest piece of memory that is used again; glibc allows no more."""


class Bandwidth:
    """Says how long to wait so that the bytes per second stay within a rate.

    >>> limited = Bandwidth(1000)
    >>> limited.reserve(600, now=0.0), limited.reserve(500, now=0.0), limited.reserve(1, now=9.0)
    (0.5, 1.0, 0.0)
    """

    def __init__(self, rate: float | None) -> None:
        self._rate = math.inf if rate is None else float(rate)
        self._free_at = -math.inf
        """When all reserved bytes have been sent."""
        self._lock = threading.Lock()

    def reserve(self, num_bytes: int, now: float) -> float:
        """Reserve bytes, and return the seconds until they may be sent."""
        with self._lock:
            begin = max(self._free_at, now - BURST)
            self._free_at = begin + num_bytes / self._rate
            return max(0.0, self._free_at - now)


def lower_priority(nice: int) -> None:
    """Lower the priority of this thread, and of those that it starts later.

    With SCHED_BATCH it interrupts no other process when it wakes up. SCHED_IDLE was tried: where
    the other processes never sleep, a migration stops.
    """
    os.nice(nice)
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def keep_memory() -> None:
    """Reuse memory instead of returning it after every chunk, where the C library is glibc.

    Returning pages and taking them again was a third of the cost of a migration.
    """
    with contextlib.suppress(OSError, AttributeError):
        set_option = ctypes.CDLL("libc.so.6").mallopt
        set_option(_MMAP_THRESHOLD, _LARGEST)
        set_option(_TRIM_THRESHOLD, 4 * _LARGEST)
        set_option(_ARENAS, 1)


def terminate_at_eof() -> None:
    """Terminate this process when standard input ends, a pipe of the process that started it."""

    def wait() -> None:
        # Not by sys.stdin, whose lock must not be held when the interpreter ends. One that is
        # closed, or hung up, has ended too.
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="until-eof", daemon=True).start()
