"""The reader: a complete or partial file, as a `RunLog`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import UNLIMITED
from evenstep.errors import RunLogError
from evenstep.runlog.event import Event
from evenstep.runlog.header import Header
from evenstep.runlog.iteration_row import MEASURES, QUANTITIES, IterationRow
from evenstep.runlog.parser import Record, RunLogParser
from evenstep.runlog.run_log import RunLog, Segment

_PIECE = 2**20
_END = 16
"""The beginning and the end of a long log each get this part of the budget."""


def read(path: str | os.PathLike[str], budget: int | None = None) -> RunLog:
    """Read a run log, even if it is still being written or ends in half a line.

    If the file has more bytes than the `budget`, only some of the rows between its beginning and
    its end are read, with all events; `num_skipped` counts the other rows.

    Raises RunLogError, with the number of the line, if anything but the last line is damaged.
    """
    parser = RunLogParser(str(path))
    builder = RunLogBuilder()
    size = Path(path).stat().st_size
    every = 1 if budget is None else max(1, -(-size // budget))
    ends = 0 if budget is None else budget // _END
    with Path(path).open("rb") as file:
        while piece := file.read(_PIECE):
            is_between = ends <= file.tell() - len(piece) and file.tell() <= size - ends
            parser.every = every if is_between else 1
            for record in parser.feed(piece):
                builder.add(record)
    for record in parser.finish():
        builder.add(record)
    if parser.header is None:
        raise RunLogError(f"{path}: a run log must begin with a whole header line, got none")
    return builder.build(complete=not parser.cut, num_skipped=parser.num_skipped)


class RunLogBuilder:
    """Takes records in the order of the file, and builds a run log of them at any time.

    A run log that was built does not change when more records are added.
    """

    def __init__(self) -> None:
        self._header: Header | None = None
        self._workers: tuple[str, ...] = ()
        self._segments: list[_Rows] = []
        self._events: list[Event] = []

    def add(self, record: Record) -> None:
        if isinstance(record, Header):
            self._header = record
            self._workers = tuple(record.workers)
        elif isinstance(record, Event):
            self._events.append(record)
            if record.workers is not None:
                self._workers = tuple(record.workers)
        else:
            if not self._segments or self._segments[-1].workers != self._workers:
                self._segments.append(_Rows(self._workers))
            self._segments[-1].add(record)

    def build(self, complete: bool = True, num_skipped: int = 0) -> RunLog:
        """Return the run log; raises RunLogError if there is no header yet."""
        if self._header is None:
            raise RunLogError("a run log must begin with a header, got none")
        segments = tuple(rows.segment() for rows in self._segments)
        return RunLog(self._header, segments, tuple(self._events), complete, num_skipped)


class _Rows:
    """The rows of one segment, in arrays that double when they are full."""

    def __init__(self, workers: tuple[str, ...]) -> None:
        self.workers = workers
        self._count = 0
        self._iterations = np.zeros(64, dtype=np.int64)
        self._plans = np.zeros(64, dtype=np.int64)
        self._starts = np.zeros(64)
        self._matrices: dict[str, NDArray[Any]] = {}

    def add(self, row: IterationRow) -> None:
        k = self._count
        if k == len(self._iterations):
            self._grow()
        self._iterations[k], self._plans[k], self._starts[k] = row.iteration, row.plan, row.start
        for name in QUANTITIES:
            values = getattr(row, name)
            if values is not None:
                if name not in self._matrices:
                    self._matrices[name] = self._unknown(name).copy()
                self._matrices[name][k] = values
        self._count = k + 1

    def segment(self) -> Segment:
        k = self._count
        matrices = {
            name: self._matrices[name][:k] if name in self._matrices else self._unknown(name)[:k]
            for name in QUANTITIES
        }
        return Segment(
            self.workers, self._iterations[:k], self._plans[:k], self._starts[:k], **matrices
        )

    def _unknown(self, name: str) -> NDArray[Any]:
        value = np.float64(np.nan) if name in MEASURES else np.int64(UNLIMITED)
        return np.broadcast_to(value, (len(self._iterations), len(self.workers)))

    def _grow(self) -> None:
        """Move to new arrays: segments that were returned keep the old ones."""
        k, old = self._count, self._matrices
        self._iterations = np.append(self._iterations, np.zeros(k, dtype=np.int64))
        self._plans = np.append(self._plans, np.zeros(k, dtype=np.int64))
        self._starts = np.append(self._starts, np.zeros(k))
        self._matrices = {name: self._unknown(name).copy() for name in old}
        for name, matrix in old.items():
            self._matrices[name][:k] = matrix
