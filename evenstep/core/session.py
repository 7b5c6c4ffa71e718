"""The session of a job: which workers have reported for which iteration, and which plan is due.

A state machine without I/O, clock or threads; the code that does the I/O calls it.

- The session collects the reports of one boundary at a time, that of its `iteration`. When every
  member has reported, the planner decides and the session moves to the next boundary.
- A report for a later boundary is kept until that boundary is open, up to `HORIZON` boundaries
  ahead; a report from further ahead is refused.
- A worker that reports in order never reports for a boundary before its last one, and the session
  does not wait for it there: it counts as silent, and its next time is not learned from, as there
  is no usage to pair it with. When every member has passed the open boundary, the session moves to
  the next one that a member has reported for, or still may, however far ahead that is. A worker can
  also say that it has passed boundaries without a report.
- A report for an earlier boundary is late: it is not learned from, and gets the plan that was made.
- The same report twice is a harmless repetition; a different one is refused.
- A worker that joins is a member from the next boundary on. A worker that leaves is gone at once:
  its report for the open boundary is dropped, and the session no longer waits for it. When the last
  member leaves, joining workers continue with the next boundary.
- A refused call leaves the session as it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from evenstep.core.plan import Plan
from evenstep.core.planner import Planner
from evenstep.core.report import Report, Reports
from evenstep.errors import EvenstepError, InvalidReport, MembershipError, OutOfTurn

HORIZON = 4
"""Boundaries that a report may be ahead of the one that is being collected."""
KEPT_PLANS = 8
"""Plans in force, now or before, that can still be asked for."""


class Receipt(Enum):
    """The outcome of a report."""

    ACCEPTED = "accepted"
    """Kept; other reports are still missing, or its boundary is not open yet."""
    COMPLETED = "completed"
    """Kept, and it completed the open boundary: there is a plan."""
    REPEATED = "repeated"
    """The same report had arrived before."""
    LATE = "late"
    """Its boundary was closed before it arrived."""


class Session:
    """The members of a job, their reports, and the plans made from them.

    >>> from evenstep.policies import Even
    >>> session = Session(Planner(["a", "b"], 8, Even()))
    >>> session.report(Report("a", iteration=0)), session.waiting_for
    (<Receipt.ACCEPTED: 'accepted'>, ('b',))
    >>> session.report(Report("b", iteration=0)), session.iteration
    (<Receipt.COMPLETED: 'completed'>, 1)
    >>> session.plan_for(0).sizes.tolist()
    [4, 4]
    """

    def __init__(
        self,
        planner: Planner,
        iteration: int = 0,
        decide: Callable[[Reports], Plan] | None = None,
    ) -> None:
        self._planner = planner
        # A caller that records decisions wraps the planner's `decide`.
        self._decide = decide or planner.decide
        self._set_members(planner.workers)
        self._joining: list[str] = []
        self._reports: dict[int, dict[str, Report]] = {}
        self._passed: dict[str, int] = {}
        self._silent: dict[str, int] = {}
        # The first plan is in force from the start, even if the planner has a delay.
        start = replace(planner.plan, iteration=min(planner.plan.iteration, iteration))
        self._plans: deque[Plan] = deque([start], maxlen=KEPT_PLANS + planner.delay)
        self._workers = {start.number: planner.workers}
        self.iteration = iteration
        """k of the boundary that is being collected."""

    @property
    def members(self) -> tuple[str, ...]:
        return self._members

    @property
    def plan(self) -> Plan:
        """The newest plan."""
        return self._plans[-1]

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans kept, in order; the last is the newest."""
        return tuple(self._plans)

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """The members that have not reported for the open boundary, and still may."""
        return tuple(worker for worker in self._members if self._is_missing(worker))

    def workers_of(self, plan: Plan) -> tuple[str, ...]:
        """Return the members of one of the plans kept, in the order of its sizes."""
        return self._workers[plan.number]

    def plan_for(self, iteration: int) -> Plan | None:
        """Return the plan that holds in an iteration, or None where it is not due yet.

        It is also None for an iteration whose plan is no longer kept.
        """
        if iteration >= self.iteration:
            return None
        return next((p for p in reversed(self._plans) if p.iteration <= iteration), None)

    @property
    def joining(self) -> tuple[str, ...]:
        """The workers that become members at the next boundary."""
        return tuple(self._joining)

    def report(self, report: Report, in_order: bool = False) -> Receipt:
        """Take a worker's report for a boundary.

        With `in_order` the worker has passed all boundaries before it.
        """
        if report.worker not in self._member_set and report.worker not in self._joining:
            raise MembershipError(
                f"worker {report.worker} is not a member: {', '.join(self._members)}"
            )
        if report.iteration < self.iteration:
            return Receipt.LATE
        first = self.iteration + (report.worker in self._joining)
        last = self.iteration + HORIZON
        if report.iteration < first or (report.iteration > last and not in_order):
            raise OutOfTurn(
                f"worker {report.worker} must report for iterations {first} to {last}, "
                f"got {report.iteration}"
            )
        known = self._reports.get(report.iteration, {}).get(report.worker)
        if known is not None:
            if known != report:
                raise InvalidReport(
                    f"worker {report.worker} must report once for iteration "
                    f"{report.iteration}, got two different reports"
                )
            return Receipt.REPEATED
        passed = self._passed.get(report.worker)
        self._reports.setdefault(report.iteration, {})[report.worker] = report
        if in_order:
            self._passed[report.worker] = max(report.iteration, passed or 0)
        try:
            closed = self._advance()
        except EvenstepError:
            # No plan can be made: the same report may come again.
            if passed is None:
                self._passed.pop(report.worker, None)
            else:
                self._passed[report.worker] = passed
            self._forget(report.worker, report.iteration)
            raise
        if in_order:
            self._forget_oldest(report.worker)
        return Receipt.COMPLETED if closed else Receipt.ACCEPTED

    def pass_by(self, worker: str, iteration: int) -> Receipt:
        """Stop waiting for a member at the boundaries before an iteration, without its report."""
        passed = self._passed.get(worker, 0)
        if worker not in self._member_set or iteration <= passed:
            return Receipt.REPEATED
        self._passed[worker] = iteration
        self._next_missing = 0
        try:
            return Receipt.COMPLETED if self._advance() else Receipt.ACCEPTED
        except EvenstepError:
            self._passed[worker] = passed
            raise

    def renumber(self, number: int) -> None:
        """Make sure that every plan from now on has a larger number than this one.

        A worker holds a plan of this number that the session does not know: it was made after the
        saved state from which the session was restored.
        """
        if number > self.plan.number:
            self._keep(self._planner.renumber(number + 1, self.iteration))

    def join(self, worker: str) -> int:
        """Make a worker a member, and return the first boundary that it takes part in."""
        if worker in self._members or worker in self._joining:
            raise MembershipError(f"worker {worker} is already a member")
        if not self._members:
            self._change_members((worker,), self.iteration)
            return self.iteration
        self._planner.check_members((*self._members, *self._joining, worker))
        self._joining.append(worker)
        return self.iteration + 1

    def leave(self, *workers: str) -> Receipt:
        """Remove workers; the receipt says whether the others now have their plan."""
        for worker in workers:
            if worker not in self._member_set and worker not in self._joining:
                raise MembershipError(
                    f"worker {worker} is not a member: {', '.join(self._members)}"
                )
        if not self._member_set.isdisjoint(workers):
            self._remove_members(frozenset(workers))
        self._joining = [worker for worker in self._joining if worker not in workers]
        for worker in workers:
            for iteration in list(self._reports):
                self._forget(worker, iteration)
            self._passed.pop(worker, None)
            self._silent.pop(worker, None)
        return Receipt.COMPLETED if self._advance() else Receipt.ACCEPTED

    def _advance(self) -> bool:
        """Close every boundary that is complete, and return whether there was one."""
        closed = False
        while self._is_complete():
            rows = self._reports.get(self.iteration, {})
            members = {worker: self._row(worker, rows) for worker in self._members}
            if rows.keys() & members.keys():
                self._keep(self._decide(Reports.gather(members, self._members)))
                self._reports.pop(self.iteration)
                silent = members.keys() - rows.keys()
                self._silent |= dict.fromkeys(silent, self.iteration)
                self.iteration += 1
            else:
                self._skip()
            self._next_missing = 0
            closed = True
            if self._joining:
                self._change_members((*self._members, *self._joining), self.iteration)
                self._joining.clear()
        return closed

    def _is_complete(self) -> bool:
        """Whether every member has reported for the open boundary, or passed it.

        The search starts at the member that was missing last time, so that the reports of n members
        cost O(n), not O(n^2).
        """
        while self._next_missing < len(self._members):
            if self._is_missing(self._members[self._next_missing]):
                return False
            self._next_missing += 1
        return bool(self._members)

    def _is_missing(self, worker: str) -> bool:
        here = self._reports.get(self.iteration, {})
        return worker not in here and self._passed.get(worker, 0) <= self.iteration

    def _set_members(self, workers: tuple[str, ...]) -> None:
        self._members = workers
        self._member_set = frozenset(workers)
        self._next_missing = 0

    def _row(self, worker: str, rows: dict[str, Report]) -> Report:
        """Return the report of a member at the open boundary, without a time that has no usage."""
        report = rows.get(worker)
        if report is None:
            return Report(worker, self.iteration)
        measured = report.iteration - 1 if report.measured is None else report.measured
        if self._silent.get(worker, -1) >= measured:
            return replace(report, batch_size=None, batch_processing_time=None)
        return report

    def _skip(self) -> None:
        """Move to the first boundary that a member has reported for, or may: all passed this."""
        members = set(self._members)
        reported = [k for k, rows in self._reports.items() if rows.keys() & members]
        self.iteration = min([*reported, *(self._passed[worker] for worker in members)])
        self._silent = dict.fromkeys(members, self.iteration - 1)
        for k in [k for k in self._reports if k < self.iteration]:
            del self._reports[k]

    def _forget(self, worker: str, iteration: int) -> None:
        self._next_missing = 0
        rows = self._reports.get(iteration, {})
        rows.pop(worker, None)
        if not rows:
            self._reports.pop(iteration, None)

    def _forget_oldest(self, worker: str) -> None:
        """Keep only the newest reports of a worker that is far ahead."""
        if len(self._reports) <= HORIZON:
            return
        ahead = sorted(k for k, rows in self._reports.items() if worker in rows)
        for k in ahead[: -HORIZON - 1]:
            self._forget(worker, k)

    def _remove_members(self, workers: frozenset[str]) -> None:
        rest = tuple(member for member in self._members if member not in workers)
        joining = tuple(worker for worker in self._joining if worker not in workers)
        if rest:
            self._change_members(rest, self.iteration)
        elif joining:
            # No member is left to close the open boundary, and these join at the next one.
            self._change_members(joining, self.iteration + 1)
            self._joining.clear()
            self._reports.pop(self.iteration, None)
            self.iteration += 1
            self._next_missing = 0
        else:
            self._set_members(())

    def _change_members(self, workers: tuple[str, ...], iteration: int) -> None:
        plan = self._planner.change_members(workers, iteration)
        self._set_members(workers)
        self._keep(plan)

    def _keep(self, plan: Plan) -> None:
        """Keep a plan in place of plans from its iteration on, which never come into force."""
        while self._plans and self._plans[-1].iteration >= plan.iteration:
            self._plans.pop()
        self._plans.append(plan)
        # A plan that keeps its number keeps its members too.
        self._workers[plan.number] = self._planner.workers
        if len(self._workers) > 2 * len(self._plans):
            kept = {kept.number for kept in self._plans}
            self._workers = {n: names for n, names in self._workers.items() if n in kept}
