"""Courtesy: how the process of an agent leaves the machine to the training beside it."""

from __future__ import annotations

import contextlib
import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENAS = -1, -3, -8
"""The numbers of glibc's settings (malloc.h)."""
_LARGEST = 32 * 2**20
"""Bytes of the largest piece of memory that is used again; glibc allows no more."""


def step_back(nice: int) -> None:
    """Let others go first: take a small share, and interrupt nobody when there is work to do.

    Threads that are started later have it from the one that calls. The policy for what may wait
    for all others, SCHED_IDLE, was tried: where none of them ever sleeps, a migration stands still.
    """
    os.nice(nice)
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def keep_memory() -> None:
    """Use memory again in place of giving it back after every chunk, where the C library is glibc.

    Taking it anew page by page was a third of what a migration cost.
    """
    with contextlib.suppress(OSError, AttributeError):
        set_option = ctypes.CDLL("libc.so.6").mallopt
        set_option(_MMAP_THRESHOLD, _LARGEST)
        set_option(_TRIM_THRESHOLD, 4 * _LARGEST)
        set_option(_ARENAS, 1)
