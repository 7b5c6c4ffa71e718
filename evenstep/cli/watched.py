"""What is watched: the newest state of a run, and what plain BSP and the optimum would take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenstep.advice.forecast import Forecast
from evenstep.advice.from_log import follows_speeds
from evenstep.runlog import Event, Header, IterationRow, Record

_CATCH_UP = 200
"""Iterations that lines are fitted to, of those that came at once: the last ones are enough."""


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


class Watched:
    """Takes the records of a run as they come; a new header begins a new run."""

    def __init__(self) -> None:
        self.latest = Latest()
        self.reason: str | None = None
        """Why the run ended, where it says so."""
        self.num_missed = 0
        """Rows that did not come because the connection was lost for too long."""
        self._forecast: Forecast | None = None

    @property
    def ended(self) -> bool:
        return self.latest.ended

    def take(self, records: Sequence[Record]) -> None:
        first = max(0, len(records) - _CATCH_UP)
        for i, record in enumerate(records):
            if isinstance(record, Header):
                self.latest, self._forecast = Latest(), None
            elif isinstance(record, Event) and record.workers is not None:
                self._forecast = None
            elif isinstance(record, Event) and record.kind == "end":
                self.reason = record.reason
            self.latest.take(record)
            if isinstance(record, IterationRow) and i >= first:
                self._observe(record)

    @property
    def name(self) -> str:
        header = self.latest.header
        return "" if header is None else f"{header.job} ({header.source})"

    @property
    def iteration_time(self) -> float:
        """Seconds of the last iteration whose times are known."""
        return np.nan if self.latest.row is None else iteration_time(self.latest.row)

    @property
    def plain(self) -> float:
        """Seconds that plain BSP would take now, about; NaN while nobody can tell."""
        return np.nan if self._forecast is None else self._forecast.plain

    @property
    def optimum(self) -> float:
        """Seconds that the best sizes would take now, about; NaN while nobody can tell."""
        return np.nan if self._forecast is None else self._forecast.optimum

    def _observe(self, row: IterationRow) -> None:
        header = self.latest.header
        if self._forecast is None and header is not None:
            proportional = follows_speeds(header.policy)
            self._forecast = Forecast(row.num_workers, header.total, proportional)
        if self._forecast is not None:
            self._forecast.observe(row.batch_sizes, row.times, row.caps)


def iteration_time(row: IterationRow) -> float:
    """Return when the last worker was through, in seconds since the start of the iteration."""
    return 0.0 if np.isnan(row.iteration_time) else row.iteration_time
