"""A run log that is followed: read piece by piece, so that nothing waits for a long one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from evenstep.dashboard.job import Job
from evenstep.dashboard.skimming import skimmer_for
from evenstep.dashboard.source import another_run
from evenstep.errors import RunLogError
from evenstep.runlog import Header, RunLogParser

PIECE = 64 * 1024
"""Bytes that are parsed at once: some ten milliseconds of work."""
SKIMMED_PIECE = 2**20


class LogFile:
    """Turns a file that grows into a job; begins anew where the file is another one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: _Reading | None = None
        self.run = 0
        """Another number for every file that is found under this name, and reading of it."""

    @property
    def job(self) -> Job | None:
        """What was read so far, None before the header."""
        return None if self._open is None else self._open.job

    @property
    def progress(self) -> float:
        """How much of the file has been read, as a fraction."""
        return 0.0 if self._open is None else self._open.progress

    @property
    def every(self) -> int:
        """One in so many iterations is read, before the last ones."""
        return 1 if self._open is None else self._open.every

    def poll(self) -> bool:
        """Read a piece, and say whether there was one."""
        try:
            with self._path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if self._open is None or not self._open.is_of(stat):
                    self._open = _Reading(self._path.name, stat)
                    self.run = another_run(self.run)
                return self._open.read(file.seek, file.read, stat.st_size)
        except OSError as error:
            if self.job is not None and not isinstance(error, FileNotFoundError):
                self.job.problem = f"{self._path.name}: {error.strerror}"
            return False


class _Reading:
    """One file, from its first byte to where it has grown to."""

    def __init__(self, name: str, stat: os.stat_result) -> None:
        self.job: Job | None = None
        self._identity = (stat.st_dev, stat.st_ino)
        self._parser = RunLogParser(name)
        self._skimmer, self._skim_until = skimmer_for(stat.st_size)
        self._position = 0
        self._size = stat.st_size
        self._damaged = False

    @property
    def progress(self) -> float:
        return self._position / self._size if self._size else 1.0

    @property
    def every(self) -> int:
        return self._skimmer.every

    def is_of(self, stat: os.stat_result) -> bool:
        """Whether this is still the same file; nothing in a run log is ever taken back."""
        return (stat.st_dev, stat.st_ino) == self._identity and stat.st_size >= self._position

    def read(self, seek: Callable[[int], int], read: Callable[[int], bytes], size: int) -> bool:
        self._size = size
        if self._damaged:
            self._position = size
            return False
        skims = self._position < self._skim_until
        seek(self._position)
        text = read(min(SKIMMED_PIECE, self._skim_until - self._position) if skims else PIECE)
        self._position += len(text)
        if skims:
            text = self._skimmer.pass_on(text)
            if self._position >= self._skim_until:
                text += self._skimmer.rest()
        # Also without any text: damage behind good lines is told with the next piece.
        self._take(text)
        return skims or bool(text)

    def _take(self, text: bytes) -> None:
        try:
            records = self._parser.feed(text)
        except RunLogError as error:
            self._damaged = True
            if self.job is not None:
                self.job.problem = str(error)
            return
        if self.job is None and records and isinstance(records[0], Header):
            self.job = Job(records[0])
        if self.job is not None:
            self.job.take(records)
