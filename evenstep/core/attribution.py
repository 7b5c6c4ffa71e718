"""Attribution: a time goes into the reports of its own iteration, however late it comes.

A device that runs ahead of its host is measured one iteration late, so that the reports at the end
of iteration k carry its time of k-1. Where times are recorded or added up, the reports about an
iteration wait until every worker has said its time of it, or of a later one.
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
"""Iterations that reports wait for a time: a worker that says nothing holds up no more of them."""


class Attribution(Generic[About]):
    """Gives reports back once they hold the times of their own iteration, in order.

    Each come with what they are about, which is given back with them. Where nobody is late, that is
    at once.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Reports, About]] = deque()
        self._last: int | None = None
        self._said = np.zeros(0, dtype=np.int64)

    def add(self, reports: Reports, about: About) -> list[tuple[Reports, About]]:
        """Take the reports at the end of an iteration, and return those that are complete now."""
        done = []
        if self._last is None or reports.iteration != self._last + 1:
            done = self.rest()
            self._said = np.full(reports.num_workers, -1)
        self._last = reports.iteration
        if reports.measured is None and not self._waiting:
            return [*done, (reports, about)]
        self._waiting.append((reports.without_times(), about))
        self._said = np.maximum(self._said, reports.measured_iterations)
        self._place(reports)
        return [*done, *self._complete()]

    def rest(self) -> list[tuple[Reports, About]]:
        """Return what still waits, with the times that came, and begin again.

        What comes next may be of other workers.
        """
        self._last = None
        rest, self._waiting = list(self._waiting), deque()
        return rest

    def _place(self, reports: Reports) -> None:
        """Put the times of these reports where they belong, as far as that still waits."""
        for i, (waiting, about) in enumerate(self._waiting):
            own = reports.observed & (reports.measured_iterations == waiting.iteration - 1)
            if own.any():
                sizes = np.where(own, reports.batch_sizes, waiting.batch_sizes)
                times = np.where(own, reports.times, waiting.times)
                self._waiting[i] = (replace(waiting, batch_sizes=sizes, times=times), about)

    def _complete(self) -> Iterator[tuple[Reports, About]]:
        while self._waiting:
            everybody_said = np.all(self._said >= self._waiting[0][0].iteration - 1)
            if not everybody_said and len(self._waiting) <= LONGEST_WAIT:
                return
            yield self._waiting.popleft()
