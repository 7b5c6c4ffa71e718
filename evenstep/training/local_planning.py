"""The boundary of workers that compute the plans themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import Plan, Policy, Reports
from evenstep.core.planner import Planner
from evenstep.training.checkpoint import (
    GIVEN_TOTAL,
    Remembered,
    SavedBalancer,
    restore,
    save,
    saved_total,
)
from evenstep.training.iteration import FinishedIteration
from evenstep.training.recorder import RunTotals
from evenstep.training.report_rows import Row, check_digests, read_rows

_NOTHING: Row = np.zeros(0, dtype=np.float32)
_PATIENCE = 10
"""Boundaries with the same advice after which a job is restarted."""


class LocalPlanning:
    """Plans from the reports of all workers; every worker computes the same plan."""

    first = 0
    slot_width = 0

    def __init__(self, planner: Planner, totals: RunTotals) -> None:
        self.planner = planner
        self.totals = totals
        self._given_total = planner.total
        """The total before any change."""
        self._straggler = StragglerWatch()

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of all workers, in the order of their ranks."""
        return self.planner.workers

    @property
    def policy(self) -> Policy[Any]:
        """The policy behind the plans."""
        return self.planner.policy

    @property
    def plan(self) -> Plan:
        """The newest plan."""
        return self.planner.plan

    @property
    def straggler(self) -> int | None:
        """The worker without which the job would be faster, if there is one."""
        return self._straggler.found

    def slot(self) -> Row:
        """Return nothing: the report is enough."""
        return _NOTHING

    def take(self, rows: NDArray[np.float32], done: FinishedIteration) -> None:
        """Take the rows of all workers about an iteration whose gradients were exchanged."""
        check_digests(rows, done.plan, done.position)
        self.learn(read_rows(rows, done.iteration + 1), done)

    def learn(self, reports: Reports, done: FinishedIteration) -> None:
        """Learn from the reports about an iteration, and compute the next plan."""
        self.totals.add(reports, done)
        if reports.speeds is not None or not self.planner.policy.uses_speeds:
            self._straggler.observe(self.planner.decide(reports))

    def change_total(self, total: int, iteration: int) -> None:
        """Plan for another total from an iteration on; sizes stay in proportion."""
        before, last = self.planner.total, self.totals.last_reports
        self.planner.change_total(total, iteration, None if last is None else last.caps)
        self._note_total(before, total, iteration)

    def meet(self) -> None:
        """Do nothing: the gradient exchange has carried all reports."""

    def state(self, iteration: int) -> dict[str, Any]:
        """Return everything learned, for a checkpoint."""
        saved = save(self.planner, self.totals.last_reports, iteration)
        return {**saved, GIVEN_TOTAL: self._given_total}

    def restore(self, state: Mapping[str, Any], worker: int) -> Remembered:
        """Restore a checkpoint, and return what it holds about one of the workers.

        The total becomes that of the checkpoint, if it was changed from the same one as here.
        """
        saved = SavedBalancer.of(state, "balancer")
        before = self.planner.total
        total = saved_total(saved, before, self._given_total)
        restore(self.planner, saved)
        self._note_total(before, total, saved.iteration)
        self.totals.last_reports = saved.last_reports(self.workers)
        self._straggler = StragglerWatch()
        return saved.about(self.workers[worker])

    def note(self, iteration: int, text: str) -> None:
        """Write a note about the boundary before an iteration into the run log, if there is one."""
        self.totals.note(iteration, text)

    def _note_total(self, before: int, total: int, iteration: int) -> None:
        if total != before:
            self.note(iteration, f"the total changes from {before} to {total} samples")

    def summary(self) -> str:
        """Return one line on the time that balancing has saved so far."""
        return self.totals.summary.line()

    def close(self, iteration: int) -> None:
        """Close the run log."""
        self.totals.close(iteration)


class StragglerWatch:
    """Finds a worker that the plans advise to remove at many boundaries in a row."""

    def __init__(self, patience: int = _PATIENCE) -> None:
        self._patience = patience
        self._worker: int | None = None
        self._count = 0

    def observe(self, plan: Plan) -> None:
        """Record the advice of one more boundary."""
        worker = plan.advice[0].worker if plan.advice else None
        self._count = self._count + 1 if worker == self._worker else 1
        self._worker = worker

    @property
    def found(self) -> int | None:
        """The worker to remove, once the advice has been the same for long enough."""
        return self._worker if self._count >= self._patience else None
