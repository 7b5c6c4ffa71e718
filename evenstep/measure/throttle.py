"""Throttling: really slows a process down, by a CPU quota on its cgroup.

For demos, benchmarks and experiments. A short period (10 ms) makes the slowdown smooth: with the
kernel's default of 100 ms iterations are either undisturbed or stalled.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from types import TracebackType

from evenstep.errors import InvalidSetting

_PERIOD = 10_000
"""Microseconds."""
_V1 = Path("/sys/fs/cgroup/cpu")
_V2 = Path("/sys/fs/cgroup")


class CpuThrottle:
    """A cgroup of its own for some processes, with a quota that can be changed.

    Needs a cgroup file system that may be written to; `CpuThrottle.why_not()` says what is missing.
    """

    def __init__(self, pids: list[int], name: str = "") -> None:
        reason = self.why_not()
        if reason is not None:
            raise InvalidSetting(f"CPUs cannot be throttled here: {reason}")
        base = _base()
        assert base is not None
        self._folder = base / f"evenstep-{os.getpid()}-{name or pids[0]}"
        self._before = {pid: _group_of(pid, base) for pid in pids}
        self._folder.mkdir()
        for pid in pids:
            (self._folder / "cgroup.procs").write_text(str(pid))

    @staticmethod
    def why_not() -> str | None:
        """Return why throttling is not possible here, or None if it is."""
        base = _base()
        if base is None:
            return "there is no cgroup file system with a cpu controller"
        if not os.access(base, os.W_OK):
            return f"{base} may not be written to (root's rights are needed)"
        return None

    def limit(self, cpus: float | None) -> None:
        """Let the processes have so many CPUs' worth of time; None lifts the quota."""
        if cpus is not None and not cpus > 0:
            raise InvalidSetting(f"a CPU quota must be > 0 CPUs, got {cpus}")
        if (self._folder / "cpu.max").exists():
            quota = "max" if cpus is None else str(int(cpus * _PERIOD))
            (self._folder / "cpu.max").write_text(f"{quota} {_PERIOD}")
            return
        (self._folder / "cpu.cfs_period_us").write_text(str(_PERIOD))
        quota = "-1" if cpus is None else str(int(cpus * _PERIOD))
        (self._folder / "cpu.cfs_quota_us").write_text(quota)

    def close(self) -> None:
        """Put the processes back where they were, and leave nothing behind."""
        if not self._folder.exists():
            return
        base = _base()
        assert base is not None
        for text in (self._folder / "cgroup.procs").read_text().split():
            home = self._before.get(int(text), base)
            with contextlib.suppress(OSError):
                ((home if home.exists() else base) / "cgroup.procs").write_text(text)
        # A process that has just ended stays in its group for a moment.
        for _ in range(100):
            with contextlib.suppress(OSError):
                self._folder.rmdir()
            if not self._folder.exists():
                return
            time.sleep(0.02)

    def __enter__(self) -> CpuThrottle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _base() -> Path | None:
    """Return the folder in which groups with a CPU quota can be made."""
    if (_V1 / "cpu.shares").exists() or (_V1 / "cpu.cfs_quota_us").exists():
        return _V1
    controllers = _V2 / "cgroup.subtree_control"
    if controllers.exists() and "cpu" in controllers.read_text().split():
        return _V2
    return None


def _group_of(pid: int, base: Path) -> Path:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if (base == _V1 and "cpu" in names.split(",")) or (base == _V2 and names == ""):
            return base / path.lstrip("/")
    return base
