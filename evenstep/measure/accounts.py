"""CPU accounts: the CPU time that a process wanted and got, as counted by the kernel."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evenstep.measure.cgroups import cpu_pressure_file, stalled_seconds

_TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class CpuTimes:
    """The CPU times of a process so far, in seconds."""

    at: float
    """When they were read."""
    running: float
    waiting: float
    """Ready to run, but another process had the CPU."""


class Account(Protocol):
    """A source of CPU times, read several times per iteration."""

    def read(self) -> CpuTimes: ...

    def refresh(self) -> None:
        """Find new threads; called every few seconds."""
        ...

    def close(self) -> None: ...


class ThreadAccounts:
    """The scheduler's accounts of all threads of this process; open files make reads cheap.

    A thread counts from the moment it was found, and the times of ended threads are kept, so that
    the sums never decrease.
    """

    def __init__(self, tasks: Path = _TASKS) -> None:
        self._tasks = tasks
        self._open: dict[str, int] = {}
        self._counted: dict[str, tuple[int, int]] = {}
        self._running = self._waiting = 0
        # Two threads read, and one of them also closes files.
        self._lock = threading.Lock()
        self.refresh()

    def __len__(self) -> int:
        return len(self._open)

    def read(self) -> CpuTimes:
        with self._lock:
            for thread in list(self._open):
                self._count(thread)
            return CpuTimes(time.perf_counter(), self._running / 1e9, self._waiting / 1e9)

    def refresh(self) -> None:
        with self._lock:
            for folder in self._tasks.iterdir():
                if folder.name not in self._open:
                    self._add(folder.name)

    def close(self) -> None:
        with self._lock:
            for thread in list(self._open):
                self._drop(thread)

    def _add(self, thread: str) -> None:
        try:
            self._open[thread] = os.open(self._tasks / thread / "schedstat", os.O_RDONLY)
            self._counted[thread] = self._times(thread)
        except (OSError, ValueError):
            # The thread ended after it was listed, or the kernel keeps no accounts.
            self._drop(thread)

    def _count(self, thread: str) -> None:
        try:
            running, waiting = self._times(thread)
        except (OSError, ValueError):
            self._drop(thread)
            return
        before = self._counted[thread]
        self._running += running - before[0]
        self._waiting += waiting - before[1]
        self._counted[thread] = (running, waiting)

    def _times(self, thread: str) -> tuple[int, int]:
        running, waiting, _ = os.pread(self._open[thread], 96, 0).split()
        return int(running), int(waiting)

    def _drop(self, thread: str) -> None:
        file = self._open.pop(thread, None)
        if file is not None:
            os.close(file)
        self._counted.pop(thread, None)


class PressureAccount:
    """Pressure stall information: time in which any process of the group or machine waited."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._begun = time.perf_counter()
        self._before = stalled_seconds(file) or 0.0
        self._waiting = 0.0

    def read(self) -> CpuTimes:
        now = time.perf_counter()
        stalled = stalled_seconds(self._file)
        if stalled is not None:
            self._waiting = min(stalled - self._before, now - self._begun)
        return CpuTimes(now, now - self._begun - self._waiting, self._waiting)

    def refresh(self) -> None: ...

    def close(self) -> None: ...


class NoAccount:
    """For kernels without accounts: waiting times are 0."""

    def read(self) -> CpuTimes:
        return CpuTimes(time.perf_counter(), time.process_time(), 0.0)

    def refresh(self) -> None: ...

    def close(self) -> None: ...


def open_account(tasks: Path = _TASKS, pressure: Path | None = None) -> Account:
    """Return the best available account: of the threads, else of the group's or machine's pressure.

    Pressure is less precise: it shows that some process waited, not which one, nor how much.
    """
    if tasks.is_dir():
        threads = ThreadAccounts(tasks)
        if len(threads):
            return threads
    pressure = pressure or cpu_pressure_file()
    return NoAccount() if pressure is None else PressureAccount(pressure)
