"""A job of the dashboard: its last iterations in full, and its history in points."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from evenstep.core import Floats, Ints, as_ints
from evenstep.estimates import Estimates, Estimator
from evenstep.insight.dashboard.run_history import OF_WORKERS, RunHistory
from evenstep.runlog import Event, Header, IterationRow, Record
from evenstep.runlog.iteration_row import share_waited, waiting_of

MOST_RECENT = 60
"""Iterations that are kept in full, in a job of few workers."""
FEWEST_RECENT = 12
RECENT_ENTRIES = 3000
"""Iterations times workers that are kept in full."""
MOST_EVENTS = 400
_ALL, _EVERY, _WORKERS_PER_SKIP = 20, 5, 10
"""The lines of plain BSP and the optimum have a point for each of the first iterations, then for
one in some: more of them with more workers, as a point costs a millisecond."""
_NEIGHBOURS = 9
"""Iterations around one that show the lasting speeds."""


_SIZES_TIMES = "batch_sizes", "times"


@dataclass(frozen=True, eq=False)
class Recent:
    """An iteration in full: its row, and the workers that the entries of its arrays belong to."""

    number: int
    """Number of iterations that were read before it."""
    row: IterationRow
    positions: Ints
    """The position of each entry among all workers that ever took part."""
    waiting: Floats

    @property
    def waiting_share(self) -> float:
        """The fraction of the workers' time that was spent waiting; NaN where unknown."""
        return share_waited(self.waiting, self.row.times)


class DashboardJob:
    """Takes the records of one run in their order; memory does not grow with its length."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.workers: tuple[str, ...] = tuple(header.workers)
        """The current workers: the order of the next row."""
        self.all_workers: list[str] = list(header.workers)
        """All workers that ever took part, in the order in which they joined."""
        self._position = {name: i for i, name in enumerate(self.all_workers)}
        self.history = RunHistory(len(self.all_workers))
        self._estimator = Estimator(header)
        self._estimates: tuple[int, Estimates | None] = (0, None)
        self._lines = math.nan, math.nan
        """Plain BSP and the optimum in the newest iteration for which they were computed."""
        self.recent: deque[Recent] = deque(maxlen=num_recent(len(self.all_workers)))
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.num_events = 0
        self.num_iterations = 0
        self.end: Event | None = None
        """The event that ended the run."""
        self.problem: str | None = None
        """Why reading stopped, if something is wrong."""

    # A log may have implausible numbers; infinite results count as unknown.
    @np.errstate(all="ignore")
    def take(self, records: Iterable[Record]) -> None:
        """Add the next records."""
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
        """The positions of the current workers."""
        return as_ints([self._position[name] for name in self.workers])

    def estimates(self) -> Estimates | None:
        """Return the figures of the settled iterations so far; None before any time is known."""
        if self._estimates[0] != self.num_iterations:
            self._estimates = (self.num_iterations, self._estimator.estimates())
        return self._estimates[1]

    def _compare(self) -> tuple[float, float]:
        """Return plain BSP's time and the optimum in the newest iteration, or one just before."""
        every = max(_EVERY, len(self.workers) // _WORKERS_PER_SKIP)
        if self.num_iterations < _ALL or self.num_iterations % every == 0:
            last = list(self.recent)[-_NEIGHBOURS:]
            near = [one.row for one in last if np.array_equal(one.positions, last[-1].positions)]
            sizes, times = (np.stack([getattr(r, name) for r in near]) for name in _SIZES_TIMES)
            plain, optimum = self._estimator.compare(sizes, times)
            self._lines = float(plain[-1]), float(optimum[-1])
        return self._lines

    def _iteration(self, row: IterationRow) -> None:
        waiting = np.full(row.num_workers, np.nan) if row.waiting is None else row.waiting
        waiting = waiting_of(waiting[np.newaxis], row.times[np.newaxis])[0]
        recent = Recent(self.num_iterations, row, self.present, waiting)
        self._estimator.take(row)
        self.recent.append(recent)
        plain, optimum = self._compare()
        self.history.add(
            row.iteration,
            {
                "iteration_times": row.iteration_time,
                "waiting_shares": recent.waiting_share,
                "plain": plain,
                "optimum": optimum,
            },
            {name: self.spread(recent, getattr(row, name)) for name in OF_WORKERS},
        )
        self.num_iterations += 1

    def spread(self, recent: Recent, values: Floats | Ints | None) -> Floats | None:
        """Return the values of an iteration with an entry for all workers, NaN for absent ones."""
        if values is None:
            return None
        spread = np.full(len(self.all_workers), np.nan)
        spread[recent.positions] = values
        return spread

    def _event(self, event: Event) -> None:
        self.events.append(event)
        self.num_events += 1
        if event.kind == "end":
            self.end = event
        self._estimator.take(event)
        if event.workers is not None:
            self._change(tuple(event.workers))

    def _change(self, workers: tuple[str, ...]) -> None:
        new = [name for name in workers if name not in self._position]
        for name in new:
            self._position[name] = len(self.all_workers)
            self.all_workers.append(name)
        if new:
            self.history.widen(len(self.all_workers))
        self.workers = workers


def num_recent(num_workers: int) -> int:
    """Return how many iterations are kept in full.

    >>> num_recent(4), num_recent(200), num_recent(5000)
    (60, 15, 12)
    """
    return max(FEWEST_RECENT, min(MOST_RECENT, RECENT_ENTRIES // max(1, num_workers)))
