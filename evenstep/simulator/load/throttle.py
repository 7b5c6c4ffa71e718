"""Throttling: limits real processes to a share of a CPU.

It uses control groups (v1 or v2), which usually need root, or signals that stop and continue
processes where that is precise enough.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from evenstep.errors import EvenstepError

_PERIOD = 10_000
"""Microseconds: the default of 100 ms would round iterations to one or two periods."""

_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = {"cpu.cfs_quota_us": "-1", "cpu.max": "max", "share": "1"}


class Throttles:
    """One group per share of a CPU; a process joins a group by its path.

    With `signals`, processes are stopped and continued if control groups cannot be made. That is
    coarser, and not suitable for a process that monitors others.
    """

    def __init__(self, shares: Sequence[float], signals: bool = False, root: Path = _ROOT) -> None:
        self._shares = shares
        self._signals = signals
        self._root = root
        self._folder: Path | None = None
        self._stopper: _Stopper | None = None
        self.groups: list[str] = []

    def __enter__(self) -> Throttles:
        try:
            self._make_groups(_parent(self._root) / f"evenstep-{os.getpid()}")
        except OSError as problem:
            self.remove()
            if not self._signals:
                raise EvenstepError(
                    f"CPUs cannot be throttled here: {problem}; it needs Linux, the cpu controller "
                    "of cgroup v1 or v2 and the right to make groups there (usually root)"
                ) from None
            self._make_folders()
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the groups; the processes in them must have ended or be about to end."""
        if self._stopper is not None:
            self._stopper.close()
        if self._folder is None:
            return
        if self._stopper is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        for group in [*self._folder.glob("worker-*"), self._folder]:
            remove_group(group)

    def _make_groups(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        if (folder.parent / "cgroup.subtree_control").is_file():
            for above in (folder.parent, folder):
                (above / "cgroup.subtree_control").write_text("+cpu")
        for i, share in enumerate(self._shares):
            group = folder / f"worker-{i}"
            group.mkdir()
            set_share(str(group), share)
            self.groups.append(str(group))

    def _make_folders(self) -> None:
        self.groups = []
        self._folder = Path(tempfile.mkdtemp(prefix="evenstep-"))
        for i, share in enumerate(self._shares):
            group = self._folder / f"worker-{i}"
            group.mkdir()
            (group / "cgroup.procs").touch()
            (group / "share").write_text(str(share))
            self.groups.append(str(group))
        self._stopper = _Stopper([Path(group) for group in self.groups])


def join(group: str) -> None:
    """Move this process to a group."""
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))


def set_share(group: str, share: float | None) -> None:
    """Limit the processes of a group to a share of a CPU; None removes the limit."""
    for name, no_limit in _NO_LIMIT.items():
        file = Path(group, name)
        if not file.is_file():
            continue
        if share is None:
            file.write_text(no_limit)
        elif name == "cpu.max":
            file.write_text(f"{round(share * _PERIOD)} {_PERIOD}")
        elif name == "share":
            file.write_text(str(share))
        else:
            (Path(group) / "cpu.cfs_period_us").write_text(str(_PERIOD))
            file.write_text(str(round(share * _PERIOD)))
        return
    raise OSError(f"{group} has none of {', '.join(_NO_LIMIT)}")


def _parent(root: Path) -> Path:
    """Return the parent of CPU groups: the controller of v1, else the tree of v2."""
    if (root / "cpu" / "cpu.cfs_quota_us").is_file():
        return root / "cpu"
    controllers = root / "cgroup.controllers"
    if controllers.is_file() and "cpu" in controllers.read_text().split():
        return root
    raise OSError(f"{root} has no CPU controller with quotas")


class _Stopper:
    """Stops and continues the process of each folder, by its share of every period."""

    def __init__(self, groups: Sequence[Path]) -> None:
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(group,), daemon=True) for group in groups
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, group: Path) -> None:
        period = _PERIOD / 1e6
        while not self._ended.is_set():
            share = float((group / "share").read_text() or 1)
            pid = (group / "cgroup.procs").read_text()
            if not pid or share >= 1:
                self._ended.wait(period)
                continue
            _signal(int(pid), signal.SIGSTOP)
            self._ended.wait((1 - share) * period)
            _signal(int(pid), signal.SIGCONT)
            self._ended.wait(share * period)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def remove_group(group: Path, tries: int = 20) -> None:
    """Remove a group, with retries: a process leaves its group shortly after it has ended."""
    while tries and not _is_removed(group):
        tries -= 1
        time.sleep(0.05)


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
