"""A load on this machine: processes that take CPU time on some cores and hold memory."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from evenstep.errors import EvenstepError, InvalidSetting
from evenstep.measure.accounts import CpuTimes
from evenstep.simulator.load import burner

_MOST_PER_CORE = 16
_GRACE = 2.0
"""Seconds that a process has to end on its own."""


def burners_per_core(most: float) -> int:
    """Return the number of processes needed to get a share of a core that another one wants too.

    The kernel lets n + 1 processes that all want a core have 1 / (n + 1) of it each.

    >>> [burners_per_core(most) for most in (0.0, 0.3, 0.5, 0.75, 1.0)]
    [1, 1, 1, 3, 16]
    """
    if most >= 1:
        return _MOST_PER_CORE
    # A quotient like 3.0000000000000004 is 3.
    return min(_MOST_PER_CORE, max(1, math.ceil(round(most / (1 - most), 9))))


class Load:
    """Processes that take an adjustable share of some cores and an adjustable amount of memory.

    They end with `close`, and when this process ends for any reason.
    """

    def __init__(self, cores: Sequence[int], most: float = 1.0) -> None:
        _check(cores)
        self.cores = list(cores)
        self._per_core = burners_per_core(most)
        self._burners: list[subprocess.Popen[bytes]] = []
        self._holder: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Load:
        try:
            self._holder = _start("memory")
            for core in self.cores:
                for _ in range(self._per_core):
                    process = _start("cpu")
                    self._burners.append(process)
                    os.sched_setaffinity(process.pid, {core})
            for process in self._processes:
                _await_ready(process)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def num_processes(self) -> int:
        return len(self._processes)

    @property
    def _processes(self) -> list[subprocess.Popen[bytes]]:
        return [*self._burners, *([] if self._holder is None else [self._holder])]

    def set(self, cpu: float, memory: int) -> None:
        """Take this share of every core from now on, and hold `memory` bytes."""
        for process in self._burners:
            _send(process, cpu / self._per_core)
        if self._holder is not None:
            _send(self._holder, memory)

    def read(self) -> CpuTimes:
        """Return the CPU time that the burners have used and waited for so far."""
        now = time.perf_counter()
        times = [_cpu_times(process.pid) for process in self._burners]
        return CpuTimes(now, *(sum(each) / 1e9 for each in zip(*times, strict=True)))

    def held(self) -> int:
        """Return the resident bytes that are held."""
        return 0 if self._holder is None else _mapped_memory(self._holder.pid)

    def close(self) -> None:
        """End all processes and wait until they have exited."""
        for process in self._processes:
            _pipes(process)[0].close()
        for process in self._processes:
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _pipes(process)[1].close()
        self._burners, self._holder = [], None


def _start(kind: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # Isolated and without site-packages, it starts in a hundredth of a second.
        [sys.executable, "-I", "-S", burner.__file__, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        # Ctrl-C must not reach them; and if the kernel divides CPUs between sessions first
        # (autogroup), each needs its own.
        start_new_session=True,
    )


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    if not _pipes(process)[1].readline():
        raise EvenstepError(f"a process of the load did not start (exit code {process.wait()})")


def _send(process: subprocess.Popen[bytes], value: float) -> None:
    try:
        _pipes(process)[0].write(f"{value!r}\n".encode())
    except BrokenPipeError:
        code = process.wait()
        raise EvenstepError(f"a process of the load was ended from outside ({code})") from None


def _cpu_times(pid: int) -> tuple[int, int]:
    """Return how long a process ran and waited for a CPU, as counted by the scheduler, in ns."""
    try:
        running, waiting, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except OSError:
        raise EvenstepError("a process of the load was ended from outside") from None
    return int(running), int(waiting)


def _mapped_memory(pid: int) -> int:
    """Return the resident bytes of anonymous mappings; the interpreter itself has none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return 1024 * int(fields.get("RssShmem", "0").split()[0])


def usable_cores() -> list[int]:
    """Return the cores that this process may use; raise EvenstepError if no load can be made."""
    if not Path("/proc/self/schedstat").is_file() or not hasattr(os, "sched_getaffinity"):
        raise EvenstepError("a load needs Linux with the scheduler's statistics in /proc")
    return sorted(os.sched_getaffinity(0))


def _check(cores: Sequence[int]) -> None:
    there = usable_cores()
    if not cores or len(set(cores)) < len(cores):
        raise InvalidSetting(f"cores must be given, and each once, got {list(cores)}")
    for core in cores:
        if core not in there:
            known = ", ".join(map(str, there))
            raise InvalidSetting(f"cores must be of those that may be used ({known}), got {core}")
