"""Throttling: control groups (v1) that really leave a worker a share of a CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from evenstep.errors import EvenstepError

_PERIOD = 10_000
"""Microseconds: with the usual 100 ms, an iteration has one period or two, and nothing between."""

_ROOT = Path("/sys/fs/cgroup/cpu")


class Throttles:
    """One control group per share of a CPU; a process writes itself into its `cgroup.procs`."""

    def __init__(self, shares: Sequence[float], root: Path = _ROOT) -> None:
        self._folder = root / f"evenstep-{os.getpid()}"
        self.groups: list[str] = []
        self._shares = shares

    def __enter__(self) -> Throttles:
        try:
            if not (self._folder.parent / "cpu.cfs_quota_us").is_file():
                raise OSError(f"{self._folder.parent} is no cgroup v1 CPU controller with quotas")
            self._folder.mkdir()
            for i, share in enumerate(self._shares):
                group = self._folder / f"worker-{i}"
                group.mkdir()
                (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
                set_share(str(group), share)
                self.groups.append(str(group))
        except OSError as problem:
            self.remove()
            raise EvenstepError(
                f"CPUs cannot be throttled here: {problem}; it takes Linux, cgroup v1 and the "
                "right to write there (usually root)"
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the groups; the processes in them must have ended, or be about to."""
        if not self._folder.is_dir():
            return
        for group in [*self._folder.glob("worker-*"), self._folder]:
            _remove(group)


def set_share(group: str, share: float | None) -> None:
    """Leave the processes of a group another share of a CPU; None lifts the limit."""
    quota = -1 if share is None else round(share * _PERIOD)
    (Path(group) / "cpu.cfs_quota_us").write_text(str(quota))


def _remove(group: Path, tries: int = 20) -> None:
    """Remove a group; a process that has just ended leaves its group a moment later."""
    while tries and not _is_removed(group):
        tries -= 1
        time.sleep(0.05)


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True
