"""The boundary of workers whose plans come from a coordinator, such as a manager.

Each worker hands in its own report, and holds the plans that came. Which of them is used is decided
where all workers meet, so that all use the same one, whichever answers got lost:

- Where the coordinator does not block, the row of the gradient exchange of k-1 carries the marks of
  the plans held, and the newest common plan is used in k. No further exchange, nobody waits.
- Where it blocks, the plan of k is made of reports about k-1, so that the gradient exchange of k-1
  comes too early for it: a small exchange of marks at the boundary follows the answer.

Where there is no common plan, or only older ones, the plan in use is kept, which is the same on all
workers.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import UNLIMITED, Plan, Policy, Report, Reports, Usage, as_ints
from evenstep.core.coordinator import JobCoordinator
from evenstep.core.held_plans import KEPT, Held, marks_of, newest_common
from evenstep.errors import EvenstepError, StateFileError
from evenstep.measure.timer import Clock
from evenstep.training.checkpoint import (
    Remembered,
    last_reports,
    remembered,
    save_plan,
    saved_sizes,
)
from evenstep.training.collective import Collective
from evenstep.training.iteration import FinishedIteration
from evenstep.training.recorder import RunTotals
from evenstep.training.report_rows import WIDTH, Row, check_digests, read_rows

Away = Callable[[], AbstractContextManager[None]]
"""Makes a context in which the clock of this worker's own work stands still."""

_log = logging.getLogger(__name__)

LONGEST = 10.0
"""Seconds: all workers come to a boundary together, so its plan comes soon or not at all. Process
groups wait longer than this for a worker that does not come."""
SHORTEST = 0.1


class ManagerPlanning:
    """Trades this worker's reports for plans, and uses the newest one that all workers hold."""

    straggler = None
    """Advice does not travel with plans."""

    def __init__(
        self,
        coordinator: JobCoordinator,
        workers: Sequence[str],
        start: Plan,
        policy: Policy[Any],
        totals: RunTotals,
        collective: Collective,
        away: Away,
        delay: int,
        cap: int | None,
    ) -> None:
        self.workers = tuple(workers)
        self.policy = policy
        self.totals = totals
        self.plan = start
        self._coordinator = coordinator
        self._collective = collective
        self._away = away
        self._delay = delay
        self._patience = Patience(coordinator.timeout)
        self._known: dict[Held, Plan | None] = {}
        self._shown: deque[list[Plan]] = deque()
        self._report: Report | None = None
        self.first = self._reached = _smallest(coordinator.iteration, collective)
        self._hand_in(Report(coordinator.worker, self.first, cap=cap))
        if not self._agree(self.first):
            _log.warning("no plan of job %s has come: even sizes until one does", coordinator.job)

    @property
    def slot_width(self) -> int:
        """How many numbers `slot` returns."""
        return 0 if self._coordinator.blocking else KEPT

    def slot(self) -> Row:
        """Return the marks of the plans that this worker holds, where they are not shown later."""
        if self._coordinator.blocking:
            return np.zeros(0, dtype=np.float32)
        # They are kept until all marks are there, however many plans come meanwhile.
        self._shown.append(self._usable())
        return marks_of(self._shown[-1])

    def take(self, rows: NDArray[np.float32], done: FinishedIteration) -> None:
        """Take the rows of all workers about an iteration whose gradients were exchanged."""
        check_digests(rows[:, :WIDTH], done.plan, done.position)
        if not self._coordinator.blocking:
            self._adopt(self._shown.popleft(), rows[:, WIDTH:], done.iteration + 1)
        self.learn(read_rows(rows[:, :WIDTH], done.iteration + 1), done)

    def learn(self, reports: Reports, done: FinishedIteration) -> None:
        """Keep what this worker has to report, for when all workers meet."""
        self.totals.add(reports, done)
        worker = self.workers.index(self._coordinator.worker)
        self._report = _report_of(reports, worker, self._coordinator.worker)

    def meet(self) -> None:
        """Hand in the newest report, and agree on the plan that came back, if it was waited for."""
        report, self._report = self._report, None
        if report is None:
            return
        with self._away():
            self._hand_in(report)
            if self._coordinator.blocking:
                self._agree(report.iteration)

    def state(self, iteration: int) -> dict[str, Any]:
        """Return the plan in use, for a checkpoint; what was learned is with the coordinator."""
        return save_plan(self.plan, self.workers, self.totals.last_reports, iteration)

    def restore(self, state: Mapping[str, Any], worker: int) -> Remembered:
        """Go on with the sizes of a checkpoint, until there is a newer plan."""
        sizes = saved_sizes(state, self.workers, self.plan.total)
        iteration = int(state["iteration"])
        if iteration < self._reached:
            raise StateFileError(
                "the iteration of a checkpoint must not be before that which the job has reached, "
                f"{self._reached}, got {iteration}: connect anew, with iteration={iteration}"
            )
        if sizes is not None:
            self.plan = Plan(self.plan.number, iteration, sizes, "restored")
        self._shown.clear()
        self._report = None
        self.totals.last_reports = last_reports(state, self.workers)
        return remembered(state, self.workers[worker])

    def note(self, iteration: int, text: str) -> None:
        """Write into the run log, where there is one, what happened before an iteration."""
        self.totals.note(iteration, text)

    def summary(self) -> str:
        """Return in one line what balancing gained so far."""
        return self.totals.summary.line()

    def close(self, iteration: int) -> None:
        """End the run log."""
        self.totals.close(iteration)

    def _hand_in(self, report: Report) -> None:
        """Trade a report for a plan, which may not come: there is one in use to go on with."""
        self._reached = report.iteration
        with self._patience.wait() as seconds, suppress(EvenstepError):
            self._coordinator.boundary(report, seconds)

    def _agree(self, iteration: int) -> bool:
        """Exchange marks with all workers, and say whether there is a common plan."""
        usable = self._usable()
        marks = self._collective.everybody(marks_of(usable).astype(np.float64))
        return self._adopt(usable, marks.astype(np.float32), iteration)

    def _adopt(self, plans: list[Plan], marks: NDArray[np.float32], iteration: int) -> bool:
        """Use the newest common plan from now on, if there is one, and none newer is in use."""
        common = newest_common(plans, marks)
        if common is None or common.number < self.plan.number:
            return False
        self._coordinator.use(Held(common, self.workers))
        if common.number != self.plan.number or np.any(common.sizes != self.plan.sizes):
            # It begins here on all workers, whatever they were told.
            at = iteration + self._delay
            self.plan = Plan(common.number, at, common.sizes, common.reason)
        return True

    def _usable(self) -> list[Plan]:
        """Return the plans held that are for the workers of this training, in their order."""
        known = self._known
        self._known = {
            held: known[held] if held in known else _in_order(held, self.workers)
            for held in self._coordinator.held
        }
        plans = self._known.values()
        return [plan for plan in plans if plan is not None and plan.total == self.plan.total]


class Patience:
    """Waits for a coordinator: half as long after a wait in vain, in full after one that was not.

    >>> clock = iter([0.0, 8.0, 8.0, 8.5]).__next__
    >>> patience = Patience(8.0, clock)
    >>> with patience.wait() as seconds:
    ...     seconds
    8.0
    >>> with patience.wait() as seconds:
    ...     seconds
    4.0
    >>> patience.seconds
    8.0
    """

    def __init__(self, timeout: float, clock: Clock = time.monotonic) -> None:
        self._full = min(timeout, LONGEST)
        self._clock = clock
        self.seconds = self._full
        """How long to wait the next time."""

    @contextmanager
    def wait(self) -> Iterator[float]:
        """Yield how long to wait now, and see whether it was in vain."""
        begun = self._clock()
        try:
            yield self.seconds
        finally:
            in_vain = self._clock() - begun >= self.seconds
            halved = max(self.seconds / 2, min(SHORTEST, self._full))
            self.seconds = halved if in_vain else self._full


def _in_order(held: Held, workers: tuple[str, ...]) -> Plan | None:
    """Return a plan with its sizes in the order of these workers; None if it is for others."""
    if sorted(held.workers) != sorted(workers):
        return None
    sizes = dict(zip(held.workers, held.plan.sizes.tolist(), strict=True))
    return replace(held.plan, sizes=as_ints([sizes[worker] for worker in workers]))


def _report_of(reports: Reports, i: int, worker: str) -> Report:
    """Return the report of one worker."""
    used = float(reports.device_memory[i])
    cap = UNLIMITED if reports.caps is None else int(reports.caps[i])
    is_observed = bool(reports.observed[i])
    measured = int(reports.measured_iterations[i])
    return Report(
        worker,
        reports.iteration,
        int(reports.batch_sizes[i]) if is_observed else None,
        float(reports.times[i]) if is_observed else None,
        Usage(
            float(reports.cpu[i]),
            float(reports.memory[i]),
            None if math.isnan(used) else used,
        ),
        cap if cap < UNLIMITED else None,
        measured if is_observed and measured < reports.iteration - 1 else None,
    )


def _smallest(number: int, collective: Collective) -> int:
    """Return the smallest of all workers' numbers."""
    return int(collective.everybody(np.array([number], dtype=np.float64)).min())
