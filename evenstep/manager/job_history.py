"""The history of a job: counts of its closed boundaries, and the last one of them."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from evenstep.core import Floats, Plan, Reports
from evenstep.core.late_times import LateTimes
from evenstep.core.planner import Planner
from evenstep.runlog.iteration_row import speeds_of

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Upper bounds of the histogram of decision times, in seconds; longer ones are counted too."""


@dataclass(frozen=True, eq=False)
class ClosedBoundary:
    """A closed boundary: the reports about iteration k-1, and the plan of iteration k.

    A device that runs ahead is measured late: then its times are of an earlier iteration.

    It never changes, so any thread may read it.
    """

    workers: tuple[str, ...]
    """The order of the arrays."""
    reports: Reports
    plan: Plan
    closed: float
    """When it was closed, in seconds of a monotonic clock."""
    seconds: float
    """How long the decision took."""
    measured: Reports
    """The newest reports that hold the times of their own iteration: those of this boundary, unless
    a device is measured late."""

    @property
    def iteration(self) -> int:
        """k: the iteration about to start."""
        return self.reports.iteration

    @property
    def waiting(self) -> Floats:
        """Seconds that each worker waited for the slowest in the iteration measured; NaN where
        unknown."""
        return waiting_of(self.measured.times)

    @property
    def predicted_speeds(self) -> Floats:
        """v of iteration k that the plan assumes; NaN where unknown."""
        plan = self.plan
        unknown = np.full(len(plan.sizes), np.nan)
        times = plan.predicted_times
        return unknown if times is None else speeds_of(plan.sizes, times)


class JobHistory:
    """Counts the decisions of a job while they are made."""

    def __init__(self) -> None:
        self.last: ClosedBoundary | None = None
        """None while the job does not run."""
        self.num_iterations = 0
        self.num_plan_changes = 0
        self.decision_seconds = 0.0
        self.decisions = [0] * (len(BUCKETS) + 1)
        """Number of decisions per bucket of `BUCKETS`, and of longer ones."""
        self._attribution: LateTimes[None] = LateTimes()

    def decide(self, planner: Planner, reports: Reports) -> ClosedBoundary:
        """Let the planner decide, and count the decision."""
        began = time.perf_counter()
        plan = planner.decide(reports)
        seconds = time.perf_counter() - began
        if self.last is not None and self.last.plan.number != plan.number:
            self.num_plan_changes += 1
        measured = self._measured(planner.workers, reports)
        closed = time.monotonic()
        self.last = ClosedBoundary(planner.workers, reports, plan, closed, seconds, measured)
        self.num_iterations += 1
        self.decision_seconds += seconds
        self.decisions[bisect_left(BUCKETS, seconds)] += 1
        return self.last

    def _measured(self, workers: tuple[str, ...], reports: Reports) -> Reports:
        if self.last is not None and self.last.workers != workers:
            # The members changed: no more times come for the reports that wait for them.
            self._attribution.rest()
        complete = self._attribution.add(reports, None)
        return complete[-1][0] if complete else reports.without_times()

    def end(self) -> None:
        """Record that the job no longer runs; the counts stay."""
        self._attribution.rest()
        self.last = None


def waiting_of(times: Floats) -> Floats:
    """Return how long each worker waits for the slowest one in an iteration, in seconds.

    >>> waiting_of(np.array([0.5, np.nan, 2.0]))
    array([1.5, nan, 0. ])
    """
    slowest = np.fmax.reduce(times) if len(times) else np.nan
    return np.asarray(slowest - times)
