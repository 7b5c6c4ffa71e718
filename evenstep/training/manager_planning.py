"""The boundary of workers whose plans come from a coordinator, such as a manager.

Each worker sends its own report, and holds the plans that it received. All workers agree on one of
these plans, so that they use the same one even if answers were lost:

- Where the coordinator does not block, the row of the gradient exchange of k-1 carries the marks of
  the plans held, and the newest common plan is used in k, without a further exchange or a wait.
- Where it blocks, the plan of k is made from reports about k-1, so the gradient exchange of k-1
  comes too early for it. A small exchange of marks at the boundary follows the answer.

If there is no common plan, or only older ones, the workers keep the plan in use, which is the same
on all of them.
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
from evenstep.errors import EvenstepError, InvalidSetting, StateFileError
from evenstep.measure.timer import Clock
from evenstep.training.checkpoint import (
    Remembered,
    SavedBalancer,
    save_plan,
    saved_sizes,
)
from evenstep.training.collective import Collective
from evenstep.training.iteration import FinishedIteration
from evenstep.training.recorder import RunTotals
from evenstep.training.report_rows import WIDTH, Row, check_digests, read_rows

Away = Callable[[], AbstractContextManager[None]]
"""Makes a context in which the timer of this worker's own work is paused."""

_log = logging.getLogger(__name__)

LONGEST = 10.0
"""Seconds: all workers reach a boundary together, so its plan comes soon or not at all. Process
groups wait longer than this for a missing worker."""
SHORTEST = 0.1


class ManagerPlanning:
    """Sends reports, receives plans, and uses the newest plan that all workers hold."""

    straggler = None
    """The plans of a coordinator carry no advice."""

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
        self._send(Report(coordinator.worker, self.first, cap=cap))
        if not self._agree(self.first):
            _log.warning("no plan of job %s has come: even sizes until one does", coordinator.job)

    @property
    def slot_width(self) -> int:
        """The number of values that `slot` returns."""
        return 0 if self._coordinator.blocking else KEPT

    def slot(self) -> Row:
        """Return the marks of the plans that this worker holds, unless they are exchanged later."""
        if self._coordinator.blocking:
            return np.zeros(0, dtype=np.float32)
        # Kept until the marks of all workers arrive, even if newer plans come in between.
        self._shown.append(self._usable())
        return marks_of(self._shown[-1])

    def take(self, rows: NDArray[np.float32], done: FinishedIteration) -> None:
        """Take the rows of all workers about an iteration whose gradients were exchanged."""
        check_digests(rows[:, :WIDTH], done.plan, done.position)
        if not self._coordinator.blocking:
            self._adopt(self._shown.popleft(), rows[:, WIDTH:], done.iteration + 1)
        self.learn(read_rows(rows[:, :WIDTH], done.iteration + 1), done)

    def learn(self, reports: Reports, done: FinishedIteration) -> None:
        """Store the report of this worker for the next boundary."""
        self.totals.add(reports, done)
        worker = self.workers.index(self._coordinator.worker)
        self._report = _report_of(reports, worker, self._coordinator.worker)

    def change_total(self, total: int, iteration: int) -> None:
        """Raise InvalidSetting: the job of a coordinator has one total."""
        raise InvalidSetting(
            f"total must stay that of job {self._coordinator.job}, {self.plan.total}, as a "
            f"coordinator makes the plans, got {total} for iteration {iteration}"
        )

    def meet(self) -> None:
        """Send the newest report and, with a blocking coordinator, agree on the plan received."""
        report, self._report = self._report, None
        if report is None:
            return
        with self._away():
            self._send(report)
            if self._coordinator.blocking:
                self._agree(report.iteration)

    def state(self, iteration: int) -> dict[str, Any]:
        """Return the plan in use, for a checkpoint; the coordinator keeps what was learned."""
        return save_plan(self.plan, self.workers, self.totals.last_reports, iteration)

    def restore(self, state: Mapping[str, Any], worker: int) -> Remembered:
        """Use the sizes of a checkpoint until there is a newer plan."""
        saved = SavedBalancer.of(state, "sizes")
        sizes, iteration = saved_sizes(saved, self.workers, self.plan.total), saved.iteration
        if iteration < self._reached:
            raise StateFileError(
                "the iteration of a checkpoint must not be before that which the job has reached, "
                f"{self._reached}, got {iteration}: connect again, with iteration={iteration}"
            )
        if sizes is not None:
            self.plan = Plan(self.plan.number, iteration, sizes, "restored")
        self._shown.clear()
        self._report = None
        self.totals.last_reports = saved.last_reports(self.workers)
        return saved.about(self.workers[worker])

    def note(self, iteration: int, text: str) -> None:
        """Write a note about the boundary before an iteration into the run log, if there is one."""
        self.totals.note(iteration, text)

    def summary(self) -> str:
        """Return one line on the time that balancing has saved so far."""
        return self.totals.summary.line()

    def close(self, iteration: int) -> None:
        """Close the run log."""
        self.totals.close(iteration)

    def _send(self, report: Report) -> None:
        """Send a report and receive a plan; without an answer, the plan in use is kept."""
        self._reached = report.iteration
        with self._patience.wait() as seconds, suppress(EvenstepError):
            self._coordinator.boundary(report, seconds)

    def _agree(self, iteration: int) -> bool:
        """Exchange marks with all workers, and return whether there is a common plan."""
        usable = self._usable()
        marks = self._collective.everybody(marks_of(usable).astype(np.float64))
        return self._adopt(usable, marks.astype(np.float32), iteration)

    def _adopt(self, plans: list[Plan], marks: NDArray[np.float32], iteration: int) -> bool:
        """Use the newest common plan from now on, unless a newer one is in use."""
        common = newest_common(plans, marks)
        if common is None or common.number < self.plan.number:
            return False
        self._coordinator.use(Held(common, self.workers))
        if common.number != self.plan.number or np.any(common.sizes != self.plan.sizes):
            # It begins here on all workers, whichever iteration it was made for.
            at = iteration + self._delay
            self.plan = Plan(common.number, at, common.sizes, common.reason)
        return True

    def _usable(self) -> list[Plan]:
        """Return the held plans for the workers of this training, with sizes in their order."""
        known = self._known
        self._known = {
            held: known[held] if held in known else _in_order(held, self.workers)
            for held in self._coordinator.held
        }
        plans = self._known.values()
        return [plan for plan in plans if plan is not None and plan.total == self.plan.total]


class Patience:
    """Limits the wait for a coordinator: halved after each timeout, in full after an answer.

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
        """The limit of the next wait."""

    @contextmanager
    def wait(self) -> Iterator[float]:
        """Yield the limit of this wait, and adapt it to whether the wait timed out."""
        begun = self._clock()
        try:
            yield self.seconds
        finally:
            timed_out = self._clock() - begun >= self.seconds
            halved = max(self.seconds / 2, min(SHORTEST, self._full))
            self.seconds = halved if timed_out else self._full


def _in_order(held: Held, workers: tuple[str, ...]) -> Plan | None:
    """Return a plan with its sizes in the order of these workers; None if it has others."""
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
