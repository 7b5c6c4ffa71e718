"""A job as the dashboard knows it: its last iterations as they were, and its course in points."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from evenstep.core import Floats, Ints, as_ints
from evenstep.insight.dashboard.estimates import LiveEstimates
from evenstep.insight.dashboard.run_history import OF_WORKERS, RunHistory
from evenstep.runlog import Event, Header, IterationRow, Record
from evenstep.runlog.iteration_row import waiting_of

MOST_RECENT = 60
"""Iterations that are kept as they were, in a job of few workers."""
FEWEST_RECENT = 12
RECENT_ENTRIES = 3000
"""Iterations times workers that are kept as they were."""
MOST_EVENTS = 400
_MEDIAN_OF = 20
"""Iterations of which the median is shown beside the newest."""


@dataclass(frozen=True, eq=False)
class Recent:
    """An iteration as it was: its row, and who the entries of its arrays belong to."""

    number: int
    """How many iterations came before it, of those that were read."""
    row: IterationRow
    places: Ints
    """The place of each entry among all workers that ever were there."""
    waiting: Floats


@dataclass(frozen=True)
class Announced:
    """An event, and how many came before it."""

    number: int
    event: Event


class DashboardJob:
    """Takes the records of one run in their order; memory does not grow with its length."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.workers: tuple[str, ...] = tuple(header.workers)
        """Those that are there now: the order of the next row."""
        self.everybody: list[str] = list(header.workers)
        """All that ever were there, in the order in which they came."""
        self._place = {name: i for i, name in enumerate(self.everybody)}
        self.course = RunHistory(len(self.everybody))
        self.estimates = LiveEstimates(self.workers)
        self.recent: deque[Recent] = deque(maxlen=num_recent(len(self.everybody)))
        self.events: deque[Announced] = deque(maxlen=MOST_EVENTS)
        self.num_events = 0
        self.num_iterations = 0
        self.end: Event | None = None
        """The event that says that the run is over."""
        self.problem: str | None = None
        """Why nothing more comes, where something is wrong."""

    # A log may hold numbers that no clock or probe has given; what they make infinite is unknown.
    @np.errstate(all="ignore")
    def take(self, records: Iterable[Record]) -> None:
        """Go on with what came."""
        for record in records:
            if isinstance(record, IterationRow):
                self._iteration(record)
            elif isinstance(record, Event):
                self._event(record)

    @property
    def last(self) -> Recent | None:
        """The newest iteration."""
        return self.recent[-1] if self.recent else None

    @property
    def present(self) -> Ints:
        """The places of the workers that are there now."""
        return as_ints([self._place[name] for name in self.workers])

    @property
    def median_time(self) -> float:
        """The median iteration time of the last iterations, in seconds; NaN where unknown."""
        times = np.array([one.row.iteration_time for one in self.recent][-_MEDIAN_OF:])
        known = times[~np.isnan(times)]
        return float(np.median(known)) if len(known) else math.nan

    def _iteration(self, row: IterationRow) -> None:
        waiting = np.full(row.num_workers, np.nan) if row.waiting is None else row.waiting
        waiting = waiting_of(waiting[np.newaxis], row.times[np.newaxis])[0]
        recent = Recent(self.num_iterations, row, self.present, waiting)
        self.estimates.observe(row)
        self.recent.append(recent)
        self.course.add(
            row.iteration,
            {
                "iteration_times": row.iteration_time,
                "waiting_shares": waiting_share(recent),
                "plain": self.estimates.plain,
                "optimum": self.estimates.optimum,
            },
            {name: self.spread(recent, getattr(row, name)) for name in OF_WORKERS},
        )
        self.num_iterations += 1

    def spread(self, recent: Recent, values: Floats | Ints | None) -> Floats | None:
        """Return values of an iteration with one entry for everybody, NaN for who was away."""
        if values is None:
            return None
        spread = np.full(len(self.everybody), np.nan)
        spread[recent.places] = values
        return spread

    def _event(self, event: Event) -> None:
        self.events.append(Announced(self.num_events, event))
        self.num_events += 1
        if event.kind == "end":
            self.end = event
        if event.workers is not None:
            self._change(tuple(event.workers))

    def _change(self, workers: tuple[str, ...]) -> None:
        new = [name for name in workers if name not in self._place]
        for name in new:
            self._place[name] = len(self.everybody)
            self.everybody.append(name)
        if new:
            self.course.widen(len(self.everybody))
        self.estimates.change(workers)
        self.workers = workers


def num_recent(num_workers: int) -> int:
    """Return how many iterations are kept as they were.

    >>> num_recent(4), num_recent(200), num_recent(5000)
    (60, 15, 12)
    """
    return max(FEWEST_RECENT, min(MOST_RECENT, RECENT_ENTRIES // max(1, num_workers)))


def waiting_share(recent: Recent) -> float:
    """Return the part of the workers' time in an iteration that was spent waiting."""
    waited, worked = float(np.nansum(recent.waiting)), float(np.nansum(recent.row.times))
    return waited / (waited + worked) if waited + worked > 0 else math.nan
