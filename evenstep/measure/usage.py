"""The usage probe: what the machine leaves to this process, as fractions.

c is the part of the CPU time that the process wanted and got: time running over time running or
waiting for a CPU, of all its threads, bounded by its cgroup's quota. m is the share of memory that
is free, bounded by its cgroup's limit. c must be fresh to be worth anything, so a thread takes a
snapshot every few hundredths of a second, and a reading covers a short window that ends now, not
the whole iteration.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from evenstep.core.report import Usage
from evenstep.measure.cgroups import cpu_quota, memory_limit

WINDOW = 0.05
"""Seconds that a reading of c covers, about."""
_LEAST = 0.01
_TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class CpuTimes:
    """What all threads of a process have had so far, in seconds."""

    at: float
    """When it was read."""
    running: float
    waiting: float
    """Ready to run, but another process had the CPU."""


def read_cpu_times() -> CpuTimes:
    """Read the scheduler's account of this process; nothing waits where there is none."""
    running = waiting = 0.0
    for account in _TASKS.glob("*/schedstat"):
        # A thread may end between being listed and being read.
        with contextlib.suppress(OSError, ValueError):
            ran, waited, _ = account.read_bytes().split()
            running += int(ran) / 1e9
            waiting += int(waited) / 1e9
    if not running:
        running = time.process_time()
    return CpuTimes(time.perf_counter(), running, waiting)


class UsageProbe:
    """Reads c and m of this process; its thread starts with the first reading."""

    def __init__(
        self, window: float = WINDOW, read_times: Callable[[], CpuTimes] = read_cpu_times
    ) -> None:
        self._window = window
        self._read_times = read_times
        self._quota = cpu_quota()
        self._limit = memory_limit()
        self._snapshots: deque[CpuTimes] = deque(maxlen=8)
        self._got = 1.0
        self._memory = self._read_memory()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self) -> Usage:
        """Return the usage over the window that ends now."""
        if self._thread is None:
            self._snapshots.append(self._read_times())
            self._thread = threading.Thread(target=self._watch, name="evenstep-usage", daemon=True)
            self._thread.start()
        now = self._read_times()
        return Usage(cpu=self._cpu(self._reference(now.at), now), memory=self._memory)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._window):
            self._snapshots.append(self._read_times())
            self._memory = self._read_memory()

    def _reference(self, now: float) -> CpuTimes:
        """Return the newest snapshot that is a window old, or the oldest that there is."""
        snapshots = list(self._snapshots)
        return next((s for s in reversed(snapshots) if now - s.at >= self._window), snapshots[0])

    def _cpu(self, then: CpuTimes, now: CpuTimes) -> float:
        running, waiting = now.running - then.running, now.waiting - then.waiting
        # Where a thread has ended its account is gone, and the difference says nothing.
        if running >= 0 and waiting >= 0 and running + waiting > 0:
            self._got = running / (running + waiting)
        return min(max(self._got, _LEAST), self._most_cpu())

    def _most_cpu(self) -> float:
        """Return the share of the CPUs it may run on that its quota allows."""
        if self._quota is None:
            return 1.0
        return max(_LEAST, min(1.0, self._quota.cpus / len(os.sched_getaffinity(0))))

    def _read_memory(self) -> float:
        memory = psutil.virtual_memory()
        free = float(memory.available / memory.total)
        used = self._limit.used() if self._limit is not None else None
        if self._limit is not None and used is not None and self._limit.limit < memory.total:
            free = min(free, 1 - used / self._limit.limit)
        return min(max(free, 0.0), 1.0)
