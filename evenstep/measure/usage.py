"""The usage probe: the CPU and memory available to this process, as fractions.

c is the share of the wanted CPU time that the process got: time running over time running or
waiting for a CPU, of all its threads, bounded by its cgroup's quota. m is the share of memory that
is free, bounded by its cgroup's limit. An old c is useless, so a thread takes a snapshot every few
hundredths of a second, and a reading covers a short window that ends now, not the whole iteration.
"""

from __future__ import annotations

import os
import threading
from collections import deque

import psutil

from evenstep.core import Usage
from evenstep.measure.accounts import Account, CpuTimes, open_account
from evenstep.measure.cgroups import cpu_quota, memory_limit

WINDOW = 0.05
"""Seconds that a reading of c covers, approximately."""
_LEAST = 0.01
_REFRESH = 2.0
"""Seconds between two readings of slow values: memory, the quota, the list of threads."""


class UsageProbe:
    """Reads c and m of this process; its thread starts with the first reading."""

    def __init__(
        self, window: float = WINDOW, account: Account | None = None, refresh: float = _REFRESH
    ) -> None:
        self._window = window
        self._account = account or open_account()
        self._refresh = refresh
        self._snapshots: deque[CpuTimes] = deque(maxlen=8)
        self._got = 1.0
        self._most_cpu, self._memory = _quota_share(), _free_memory()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self) -> Usage:
        """Return the usage over the window that ends now."""
        if self._thread is None:
            self._snapshots.append(self._account.read())
            self._thread = threading.Thread(target=self._watch, name="evenstep-usage", daemon=True)
            self._thread.start()
        now = self._account.read()
        return Usage(cpu=self._cpu(self._reference(now.at), now), memory=self._memory)

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._account.close()

    def _watch(self) -> None:
        due = self._refresh
        while not self._stop.wait(self._window):
            self._snapshots.append(self._account.read())
            due -= self._window
            if due <= 0:
                due = self._refresh
                self._account.refresh()
                self._most_cpu, self._memory = _quota_share(), _free_memory()

    def _reference(self, now: float) -> CpuTimes:
        """Return the newest snapshot that is at least a window old, or else the oldest."""
        snapshots = list(self._snapshots)
        return next((s for s in reversed(snapshots) if now - s.at >= self._window), snapshots[0])

    def _cpu(self, then: CpuTimes, now: CpuTimes) -> float:
        running, waiting = now.running - then.running, now.waiting - then.waiting
        if running >= 0 and waiting >= 0 and running + waiting > 0:
            self._got = running / (running + waiting)
        return min(max(self._got, _LEAST), self._most_cpu)


def _quota_share() -> float:
    """Return the CPU quota as a share of the CPUs that this process may run on."""
    quota = cpu_quota()
    if quota is None:
        return 1.0
    return max(_LEAST, min(1.0, quota / len(os.sched_getaffinity(0))))


def _free_memory() -> float:
    memory = psutil.virtual_memory()
    free = float(memory.available / memory.total)
    limit = memory_limit()
    used = limit.used() if limit is not None else None
    if limit is not None and used is not None and limit.limit < memory.total:
        free = min(free, 1 - used / limit.limit)
    return min(max(free, 0.0), 1.0)
