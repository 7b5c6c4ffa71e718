"""The output of `evenstep watch`: a live table on a terminal, otherwise a line now and then."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from evenstep.cli.workers_table import workers_table
from evenstep.estimates import Estimates, Estimator, without_nan
from evenstep.estimates.words import duration, headline, optimum_words
from evenstep.insight.plots.plot_data import readable
from evenstep.runlog import Event, Header, IterationRow, Record

_AROUND_TABLE = 12
"""Lines of the screen that are not rows of the table."""
_QUIET = 20.0
"""Seconds without an iteration after which the view says so."""


class WatchView:
    """Shows the newest state of a run; the last one stays on the screen."""

    def __init__(self, every: float, as_json: bool = False) -> None:
        self._every = every
        self._as_json = as_json
        self._console = Console()
        self._live: Live | None = None
        self._printed_at = -math.inf
        self._printed = -1
        self._problem: str | None = None
        self._moved_at = time.monotonic()
        self._quiet_at = -math.inf
        self._last_iteration = -1
        if self._console.is_terminal and not as_json:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)

    def show(self, watched: Watched, problem: str | None) -> None:
        """Show the state of the run, and the problem of its source."""
        now = time.monotonic()
        if watched.latest.iteration != self._last_iteration:
            self._last_iteration, self._moved_at = watched.latest.iteration, now
        if self._live is not None:
            self._live.update(self._picture(watched, problem, now))
            return
        if problem != self._problem:
            self._problem = problem
            self._say(problem or ("it is there" if watched.latest.iteration < 0 else "it is back"))
        quiet = now - self._moved_at
        if quiet > _QUIET and problem is None and self._quiet_at != self._moved_at:
            self._quiet_at = self._moved_at
            self._say(f"nothing new for {quiet:.0f} s: the run is slow, it hangs, or it was killed")
        if now >= self._printed_at + self._every:
            self._line(watched, now)

    def end(self, watched: Watched) -> None:
        """Leave the last state on the screen, and print that the run has ended."""
        if self._live is not None:
            self._live.update(Text())
            self._console.print(self._picture(watched, None, self._moved_at))
        elif watched.latest.iteration != self._printed:
            self._line(watched, time.monotonic())
        if watched.ended:
            why = f": {readable(watched.reason, 60)}" if watched.reason else ""
            self._say(f"The run has ended{why}.")

    def __enter__(self) -> WatchView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _say(self, text: str) -> None:
        if self._as_json:
            print(text, file=sys.stderr, flush=True)
            return
        self._console.print(Text(text), soft_wrap=True)

    def _line(self, watched: Watched, now: float) -> None:
        row = watched.latest.row
        if row is None or watched.latest.iteration == self._printed:
            return
        self._printed, self._printed_at = watched.latest.iteration, now
        if self._as_json:
            print(json.dumps(watched.as_json()), flush=True)
            return
        sizes = "/".join(map(str, row.batch_sizes.tolist()[:16]))
        more = "/..." if row.num_workers > 16 else ""
        self._say(f"{_title(watched)} Batch sizes {sizes}{more}.")

    def _picture(self, watched: Watched, problem: str | None, now: float) -> RenderableType:
        row = watched.latest.row
        if row is None:
            return Text(problem or "waiting for the first iteration ...")
        table = workers_table(
            _title(watched), [readable(name, 40) for name in watched.latest.workers],
            row.batch_sizes, row.times, watched.iteration_time, row.waiting, row.cpu,
            most=max(4, self._console.height - _AROUND_TABLE), slowest_first=True,
        )  # fmt: skip
        quiet = now - self._moved_at
        remark = problem or (f"nothing new for {quiet:.0f} s" if quiet > _QUIET else "")
        return Group(table, Text(remark, style="yellow")) if remark else table


def _title(watched: Watched) -> str:
    parts = [
        f"{readable(watched.name, 60)}: iteration {watched.latest.iteration}, "
        f"{duration(watched.iteration_time)} now."
    ]
    estimates = watched.estimates()
    if estimates is not None:
        slow = "" if estimates.straggler is None else readable(estimates.straggler.worker, 40)
        mean = duration(estimates.iteration_time)
        above = estimates.above_optimum
        best = "" if math.isnan(above) else f", about {optimum_words(above)}"
        parts.append(f"{_first_upper(estimates.about)}: {mean}{best}.")
        parts.append(headline(estimates, slow))
    if watched.num_missed:
        parts.append(f"{watched.num_missed} rows missed.")
    return " ".join(parts)


def _first_upper(text: str) -> str:
    return text[0].upper() + text[1:]


class Latest:
    """The newest state of a run, for a live view."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.workers: tuple[str, ...] = ()
        self.row: IterationRow | None = None
        """The last iteration with known times."""
        self.iteration = -1
        """The number of the last iteration, with known times or not."""
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
    """Takes the records of a run as they arrive; a new header begins a new run."""

    def __init__(self) -> None:
        self.latest = Latest()
        self.reason: str | None = None
        """Why the run ended, if its log has the reason."""
        self.num_missed = 0
        """Rows that were missed because the connection was lost for too long."""
        self._estimator: Estimator | None = None
        self._estimates: tuple[int, Estimates | None] = (-1, None)

    @property
    def ended(self) -> bool:
        return self.latest.ended

    def take(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, Header):
                self.latest, self._estimator = Latest(), Estimator(record)
                self._estimates = (-1, None)
            elif self._estimator is not None:
                self._estimator.take(record)
            if isinstance(record, Event) and record.kind == "end":
                self.reason = record.reason
            self.latest.take(record)

    def estimates(self) -> Estimates | None:
        """Return the figures of the settled iterations so far."""
        if self._estimator is not None and self._estimates[0] != self.latest.iteration:
            self._estimates = (self.latest.iteration, self._estimator.estimates())
        return self._estimates[1]

    def as_json(self) -> dict[str, Any]:
        """Return the newest iteration and the settled figures."""
        header, row, estimates = self.latest.header, self.latest.row, self.estimates()
        now = {
            "job": None if header is None else header.job,
            "source": None if header is None else header.source,
            "iteration": self.latest.iteration,
            "iteration_time": self.iteration_time,
            "workers": self.latest.workers,
            "batch_sizes": None if row is None else row.batch_sizes.tolist(),
            "times": None if row is None else row.times.tolist(),
            "missed": self.num_missed,
            "estimates": None if estimates is None else estimates.as_json(),
        }
        known: dict[str, Any] = without_nan(now)
        return known

    @property
    def name(self) -> str:
        header = self.latest.header
        return "" if header is None else f"{header.job} ({header.source})"

    @property
    def iteration_time(self) -> float:
        """Seconds of the last iteration with known times."""
        return np.nan if self.latest.row is None else iteration_time(self.latest.row)


def iteration_time(row: IterationRow) -> float:
    """Return the seconds until the last worker finished the iteration; 0 where unknown."""
    return 0.0 if np.isnan(row.iteration_time) else row.iteration_time
