"""Following a run log while it grows."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from evenstep.runlog import Header, IterationRow, Record, RunLogParser

PIECE = 2**22
"""Bytes that are read at once: the records of a whole long log would not fit into memory."""


class Follower:
    """Reads what a run log has grown by since it was last asked; the file may not be there yet.

    A file that is another one, or shorter than it was, is a new run log.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._parser = RunLogParser(str(path))
        self._position = 0
        self._file: int | None = None
        self.behind = False
        """Whether the file has more than was read at once."""

    def poll(self) -> list[Record]:
        """Return new records: some of them where they are many, none where there are none."""
        try:
            with self._path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._file or stat.st_size < self._position:
                    self._file, self._position = stat.st_ino, 0
                    self._parser = RunLogParser(str(self._path))
                file.seek(self._position)
                text = file.read(PIECE)
        except FileNotFoundError:
            return []
        self._position += len(text)
        self.behind = self._position < stat.st_size
        return self._parser.feed(text)


class Latest:
    """The newest state of a run: all that a live view shows of it."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.workers: tuple[str, ...] = ()
        self.row: IterationRow | None = None
        """The last iteration whose times are known."""
        self.iteration = -1
        """The last iteration, whether its times are known or not."""
        self.ended = False

    def take(self, record: Record) -> None:
        if isinstance(record, Header):
            self.header = record
            self.workers = tuple(record.workers)
        elif isinstance(record, IterationRow):
            self.iteration = record.iteration
            if not np.isnan(record.times).all():
                self.row = record
        elif record.kind == "end":
            self.ended = True
        elif record.workers is not None:
            self.workers = tuple(record.workers)
            self.row = None

    @property
    def waiting_share(self) -> float:
        """The part of the workers' time in the last iteration that was spent waiting."""
        if self.row is None:
            return 0.0
        longest = iteration_time(self.row)
        worked = float(np.nansum(self.row.times))
        return 1 - worked / (longest * self.row.num_workers) if longest > 0 else 0.0


def iteration_time(row: IterationRow) -> float:
    """Return when the last worker was through, in seconds since the start of the iteration."""
    return 0.0 if np.isnan(row.iteration_time) else row.iteration_time
