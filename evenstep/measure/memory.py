"""Peak memory: the share of its available memory that this process has used."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Protocol

import psutil

from evenstep.measure.cgroups import MemoryLimit, memory_limit

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class PeakMemory(Protocol):
    """A source of the peak memory of a device or process."""

    def read(self) -> float | None:
        """Return the largest share in use since the last reading; None if unknown."""
        ...


class HostMemory:
    """The peak of this process's resident memory, as a share of what it may use.

    It may use its own memory and what the machine or its control group has left.
    """

    def __init__(self, status: Path = _STATUS, clear: Path = _CLEAR) -> None:
        self._status = status
        self._clear = clear
        self._limit = memory_limit()
        self._reset()

    def read(self) -> float | None:
        peak, now = self._resident()
        if peak is None or now is None:
            return None
        self._reset()
        return min(1.0, peak / max(peak, now + available_memory(self._limit)))

    def _resident(self) -> tuple[int | None, int | None]:
        """Return the bytes at the peak, and now."""
        try:
            lines = self._status.read_text().splitlines()
        except OSError:
            return None, None
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        peak, now = (fields.get(name, "").split() for name in ("VmHWM", "VmRSS"))
        return (1024 * int(peak[0]) if peak else None, 1024 * int(now[0]) if now else None)

    def _reset(self) -> None:
        # If this is not permitted, the peak is that of the whole run: too high, which is safe.
        with contextlib.suppress(OSError):
            self._clear.write_text("5")


def available_memory(limit: MemoryLimit | None) -> int:
    """Return the bytes that the machine, and the control group of this limit, have left."""
    available = int(psutil.virtual_memory().available)
    used = limit.used() if limit is not None else None
    if limit is None or used is None:
        return available
    return max(0, min(available, limit.limit - used))
