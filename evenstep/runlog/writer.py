"""The writer: one line per record, whole and at once, so that others can read along."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TextIO

from evenstep.core.plan import Plan
from evenstep.errors import InvalidSetting
from evenstep.runlog.encoding import event_line, header_line, row_line
from evenstep.runlog.event import Event
from evenstep.runlog.header import Header
from evenstep.runlog.iteration_row import IterationRow
from evenstep.runlog.plan_events import PlanEvents


class RunLogWriter:
    """Writes a run log to a path, or to an open text file that stays the caller's to close.

    Every record that it takes, the reader can read; what breaks the format is an InvalidSetting,
    and nothing of it is written.

    >>> import io
    >>> file = io.StringIO()
    >>> header = Header("simulated", "G", ["w0"], total=8, policy="even", predictor="ema")
    >>> with RunLogWriter(file, header) as log:
    ...     log.iteration(IterationRow(0, plan=0, start=0.0, batch_sizes=[8], times=[0.1]))
    ...     log.event(Event("end", iteration=1))
    >>> print(file.getvalue().splitlines()[-1])
    {"event":"end","iteration":1}
    """

    def __init__(self, file: str | os.PathLike[str] | TextIO, header: Header) -> None:
        self._owned = isinstance(file, (str, os.PathLike))
        self._file = _open(file) if isinstance(file, (str, os.PathLike)) else file
        self._workers = tuple(header.workers)
        self._last_iteration = -1
        self._plan_events = PlanEvents()
        self._write(header_line(header))

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers now: the order of the arrays of the next row."""
        return self._workers

    def iteration(self, row: IterationRow) -> None:
        """Write the row of an iteration; they come in the order of their numbers."""
        if row.num_workers != len(self._workers):
            raise InvalidSetting(
                f"a row must have one entry per worker ({len(self._workers)}), "
                f"got {row.num_workers}"
            )
        if row.iteration <= self._last_iteration:
            raise InvalidSetting(
                f"iteration must rise, got {row.iteration} after {self._last_iteration}"
            )
        self._write(row_line(row))
        self._last_iteration = row.iteration

    def event(self, event: Event) -> None:
        """Write an event; a join or leave changes the order of the arrays that follow it."""
        workers = self._workers if event.workers is None else tuple(event.workers)
        if event.batch_sizes is not None and len(event.batch_sizes) != len(workers):
            raise InvalidSetting(
                f"batch_sizes of an event must have one entry per worker ({len(workers)}), "
                f"got {len(event.batch_sizes)}"
            )
        self._write(event_line(event))
        self._workers = workers

    def plan(self, plan: Plan, iteration: int | None = None) -> None:
        """Write what is new in the plan of a boundary: adopted, proposed, phase, advice.

        Call it at every boundary; a plan that goes on unchanged writes nothing.
        """
        for event in self._plan_events.tell(plan, self._workers, iteration):
            self.event(event)

    def close(self) -> None:
        if self._owned:
            self._file.close()

    def __enter__(self) -> RunLogWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()


def _open(path: str | os.PathLike[str]) -> TextIO:
    return Path(path).open("w", encoding="ascii", newline="\n")
