"""Run logs as a source: one file, or all run logs in a folder, including new ones.

Only logs that a page shows are read; of the others, the first and the last line are enough.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from stat import S_ISREG

from evenstep.errors import RunLogError
from evenstep.insight.dashboard.job import DashboardJob
from evenstep.insight.dashboard.source import Entry, Reading, Remedies, another_run, key_of
from evenstep.runlog import Header, RunLogParser
from evenstep.runlog.follower import FileFollower

RESCAN = 1.0
"""Seconds between two scans of the folder."""
KEPT = 60.0
"""Seconds for which a log is still followed after no page shows it."""
SILENT = 30.0
"""Seconds without a new line after which a run is called silent."""
MOST = 500
"""Run logs in the list: the newest."""
PIECE = 64 * 1024
"""Bytes that are parsed at once: about ten milliseconds of work."""
_FIRST, _LAST = 4 * 2**20, 4096
"""Bytes that may hold the header, and bytes at the end that are searched for the end event."""


class Folder:
    """Finds the run logs at a path, and follows those that pages show."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._clock = clock
        self._wall_clock = wall_clock
        self._scanned = -RESCAN
        self._found: dict[str, _Found] = {}
        self._num_others = 0
        self._followed: dict[str, LogFile] = {}
        self._looked: dict[str, float] = {}

    @property
    def title(self) -> str:
        return str(self._path)

    @property
    def problem(self) -> str | None:
        if self._found:
            return None
        if not self._path.is_dir():
            is_file = _stat(self._path) is not None
            wrong = "does not begin like a run log" if is_file else "is not there yet"
            return f"the file {self._path} {wrong}"
        others = self._num_others
        more = f"; files *.jsonl that do not begin like one: {others}" if others else ""
        return f"no run log in the folder {self._path} yet{more}"

    @property
    def remedies(self) -> Remedies:
        folder = self._path if self._path.is_dir() else self._path.parent
        path = str(folder / "run.jsonl")
        out, log = shlex.quote(str(folder)), shlex.quote(path)
        return (
            ("Your training writes a run log:", f"Balancer(model, total=256, log={path!r})"),
            ("A real training on emulated devices, in a minute:", f"evenstep demo --out {out}"),
            ("A simulation, at once:", f"evenstep simulate G --log {log}"),
        )

    def start(self) -> None:
        """Do nothing: files are read on demand."""

    def poll(self) -> bool:
        now = self._clock()
        if now - self._scanned >= RESCAN:
            self._scanned = now
            self.rescan()
        for key in [key for key, looked in self._looked.items() if now - looked > KEPT]:
            del self._looked[key]
            self._followed.pop(key, None)
        polled = [log.poll() for log in self._followed.values()]
        return any(polled)

    def entries(self) -> list[Entry]:
        newest = sorted(self._found.values(), key=lambda found: -found.changed)
        return [found.entry(self._wall_clock()) for found in newest]

    def read(self, key: str) -> Reading | None:
        if key not in self._found:
            return None
        self._looked[key] = self._clock()
        if key not in self._followed:
            self._followed[key] = LogFile(self._found[key].path)
            # A new page shows something at once.
            self._followed[key].poll()
        return self._followed[key].reading

    def rescan(self) -> None:
        """Update the list of run logs and their states."""
        paths = self._path.glob("*.jsonl") if self._path.is_dir() else [self._path]
        stats = {path: stat for path in paths if (stat := _stat(path)) is not None}
        newest = sorted(stats, key=lambda path: -stats[path].st_mtime)[:MOST]
        files = {key_of(path.name): path for path in newest}
        looked = {key: self._found.get(key) or _Found(path) for key, path in files.items()}
        self._found = {key: one for key, one in looked.items() if one.look(stats[one.path])}
        self._num_others = len(looked) - len(self._found)


class LogFile:
    """Turns a growing run log into a job, a piece at a time, so that pages never wait long."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._follower = FileFollower(path, PIECE, skims=True)
        self._job: DashboardJob | None = None
        self.run = 0
        """A new number for every run log that is found under this name."""

    @property
    def reading(self) -> Reading | None:
        """The job as far as it was read; None before the header."""
        if self._job is None or self._follower.header is None:
            return None
        return Reading(self._job, self.run, self._follower.progress, self._follower.every)

    def poll(self) -> bool:
        """Read a piece, and return whether there was one."""
        try:
            records = self._follower.poll()
        except RunLogError as error:
            return self._fail(str(error))
        except OSError as error:
            return self._fail(f"{self._path.name}: {error.strerror}")
        if records and isinstance(records[0], Header):
            self._job, self.run = DashboardJob(records[0]), another_run(self.run)
        if self._job is not None:
            self._job.take(records)
        return bool(records) or self._follower.behind

    def _fail(self, problem: str) -> bool:
        if self._job is not None:
            self._job.problem = problem
        return False


class _Found:
    """A file that may be a run log, with its header and state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changed = 0.0
        self._size = self._number = -1
        self._header: Header | None = None
        self._ended = False

    def look(self, stat: os.stat_result) -> bool:
        """Read the file's ends if it has changed, and return whether it is a run log."""
        if (stat.st_size, stat.st_mtime) != (self._size, self.changed):
            is_other = stat.st_size < self._size or stat.st_ino != self._number
            self._size, self.changed, self._number = stat.st_size, stat.st_mtime, stat.st_ino
            try:
                with self.path.open("rb") as file:
                    if self._header is None or is_other:
                        self._header = _header(file.readline(_FIRST))
                    file.seek(max(0, stat.st_size - _LAST))
                    lines = file.read(_LAST).splitlines()
            except OSError:
                return False
            self._ended = bool(lines) and lines[-1].startswith(b'{"event":"end"')
        return self._header is not None

    def entry(self, now: float) -> Entry:
        assert self._header is not None
        state = "silent" if now - self.changed > SILENT else "running"
        return Entry(
            key_of(self.path.name),
            self._header.job,
            self.path.name,
            self._header.source,
            self._header.num_workers,
            "ended" if self._ended else state,
        )


def _stat(path: Path) -> os.stat_result | None:
    """Return the status of a regular file, or None: reading a pipe would block the server."""
    try:
        stat = path.stat()
    except OSError:
        # The file was removed meanwhile, or may not be read.
        return None
    return stat if S_ISREG(stat.st_mode) else None


def _header(line: bytes) -> Header | None:
    parser = RunLogParser()
    try:
        records = parser.feed(line)
    except RunLogError:
        return None
    return records[0] if records and isinstance(records[0], Header) else None
