"""The builder: puts records, one by one, together to a `RunLog`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core.limits import UNLIMITED
from evenstep.errors import RunLogError
from evenstep.runlog.event import Event
from evenstep.runlog.header import Header
from evenstep.runlog.iteration_row import MEASURES, QUANTITIES, IterationRow
from evenstep.runlog.parser import Record
from evenstep.runlog.run_log import RunLog, Segment


class RunLogBuilder:
    """Takes records in the order of the file; what it built so far can be asked for at any time.

    A run log that was built does not change when more records come.
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
        """Return the run log; RunLogError where there is no header yet."""
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
        """Move to new arrays: segments given away keep the old ones."""
        k, old = self._count, self._matrices
        self._iterations = np.append(self._iterations, np.zeros(k, dtype=np.int64))
        self._plans = np.append(self._plans, np.zeros(k, dtype=np.int64))
        self._starts = np.append(self._starts, np.zeros(k))
        self._matrices = {name: self._unknown(name).copy() for name in old}
        for name, matrix in old.items():
            self._matrices[name][:k] = matrix
