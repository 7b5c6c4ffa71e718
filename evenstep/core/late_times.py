"""Late times: they are moved into the reports of the iteration that they belong to.

A device that runs ahead of its host is measured one iteration late, so that the reports at the end
of iteration k carry its time of k-1. Where times are recorded or added up, the reports about an
iteration are held back until every worker has reported its time of that iteration or a later one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from evenstep.core.report import Reports

About = TypeVar("About")

LONGEST_WAIT = 4
"""Iterations that reports are held back at most, so that a silent worker cannot delay more."""


class LateTimes(Generic[About]):
    """Returns reports, in order, once they hold the times of their own iteration.

    A value of the caller travels with each. If no worker is late, they are returned at once.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Reports, About]] = deque()
        self._last: int | None = None
        self._reported = np.zeros(0, dtype=np.int64)

    def add(self, reports: Reports, about: About) -> list[tuple[Reports, About]]:
        """Take the reports at the end of an iteration, and return those that are complete now."""
        done = []
        if self._last is None or reports.iteration != self._last + 1:
            done = self.rest()
            self._reported = np.full(reports.num_workers, -1)
        self._last = reports.iteration
        if reports.measured is None and not self._waiting:
            return [*done, (reports, about)]
        self._waiting.append((reports.without_times(), about))
        self._reported = np.maximum(self._reported, reports.measured_iterations)
        self._move_times(reports)
        return [*done, *self._complete()]

    def rest(self) -> list[tuple[Reports, About]]:
        """Return all reports held back, with the times known so far, and start over.

        The next reports may be those of other workers.
        """
        self._last = None
        rest, self._waiting = list(self._waiting), deque()
        return rest

    def _move_times(self, reports: Reports) -> None:
        """Move the times of these reports into the reports held back that they belong to."""
        for i, (waiting, about) in enumerate(self._waiting):
            own = reports.observed & (reports.measured_iterations == waiting.iteration - 1)
            if own.any():
                sizes = np.where(own, reports.batch_sizes, waiting.batch_sizes)
                times = np.where(own, reports.times, waiting.times)
                self._waiting[i] = (replace(waiting, batch_sizes=sizes, times=times), about)

    def _complete(self) -> Iterator[tuple[Reports, About]]:
        while self._waiting:
            all_reported = np.all(self._reported >= self._waiting[0][0].iteration - 1)
            if not all_reported and len(self._waiting) <= LONGEST_WAIT:
                return
            yield self._waiting.popleft()
