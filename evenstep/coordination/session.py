"""The session of a job: who has reported for which iteration, and which plan is due.

A state machine without I/O, clock or threads; whoever moves the bytes calls it.

- The session collects the reports of one boundary at a time, that of its `iteration`. When every
  member has reported, the balancer decides and the session goes on to the next boundary.
- A report for a later boundary is kept until its turn comes, up to `HORIZON` boundaries ahead;
  one from further ahead is refused.
- A report for an earlier boundary is late: it teaches nothing, and gets the plan that was made.
- The same report twice is a repetition and harmless; a different one is refused.
- Who joins is a member from the next boundary on. Who leaves is gone at once: what it reported
  for the open boundary is dropped, and nobody waits for it any more. When the last member leaves,
  those who are joining go on with the next boundary.
- Whatever is refused leaves the session as it was.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from enum import Enum

from evenstep.balancer import Balancer
from evenstep.core.plan import Plan
from evenstep.core.report import Report, Reports
from evenstep.errors import EvenstepError, InvalidReport, MembershipError, OutOfTurn

HORIZON = 4
"""Boundaries that a report may be ahead of the one that is being collected."""
KEPT_PLANS = 8
"""Plans in force, now or before, that can still be asked for."""


class Receipt(Enum):
    """What became of a report."""

    ACCEPTED = "accepted"
    """Kept; others are still missing, or its boundary is not open yet."""
    COMPLETED = "completed"
    """Kept, and with it the open boundary was complete: there is a plan."""
    REPEATED = "repeated"
    """The same had come before."""
    LATE = "late"
    """Its boundary was closed before it came."""


class Session:
    """The members of a job, their reports, and the plans made from them.

    >>> from evenstep.policies import Even
    >>> session = Session(Balancer(["a", "b"], 8, Even()))
    >>> session.report(Report("a", iteration=0)), session.waiting_for
    (<Receipt.ACCEPTED: 'accepted'>, ('b',))
    >>> session.report(Report("b", iteration=0)), session.iteration
    (<Receipt.COMPLETED: 'completed'>, 1)
    >>> session.plan_for(0).sizes.tolist()
    [4, 4]
    """

    def __init__(self, balancer: Balancer, iteration: int = 0) -> None:
        self._balancer = balancer
        self._members = balancer.workers
        self._joining: list[str] = []
        self._reports: dict[int, dict[str, Report]] = {}
        # Whatever plan there is at the start is in force; with a delay, some are not yet.
        start = replace(balancer.plan, iteration=min(balancer.plan.iteration, iteration))
        self._plans: deque[Plan] = deque([start], maxlen=KEPT_PLANS + balancer.delay)
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
    def waiting_for(self) -> tuple[str, ...]:
        """The members that have not reported for the open boundary."""
        here = self._reports.get(self.iteration, {})
        return tuple(worker for worker in self._members if worker not in here)

    def plan_for(self, iteration: int) -> Plan | None:
        """Return the plan that holds in an iteration, or None where it is not due yet.

        It is also None for an iteration so long ago that its plan was forgotten.
        """
        if iteration >= self.iteration:
            return None
        return next((p for p in reversed(self._plans) if p.iteration <= iteration), None)

    def report(self, report: Report) -> Receipt:
        """Take a worker's report for a boundary."""
        if report.worker not in self._members and report.worker not in self._joining:
            raise MembershipError(
                f"worker {report.worker} is not a member: {', '.join(self._members)}"
            )
        if report.iteration < self.iteration:
            return Receipt.LATE
        first = self.iteration + (report.worker in self._joining)
        last = self.iteration + HORIZON
        if not first <= report.iteration <= last:
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
        self._reports.setdefault(report.iteration, {})[report.worker] = report
        try:
            closed = self._advance()
        except EvenstepError:
            # No plan can be made: what was refused may come again.
            self._reports.get(report.iteration, {}).pop(report.worker, None)
            raise
        return Receipt.COMPLETED if closed else Receipt.ACCEPTED

    def join(self, worker: str) -> int:
        """Make a worker a member, and return the first boundary that it takes part in."""
        if worker in self._members or worker in self._joining:
            raise MembershipError(f"worker {worker} is already a member")
        if not self._members:
            self._change_members((worker,), self.iteration)
            return self.iteration
        self._balancer.check_members((*self._members, *self._joining, worker))
        self._joining.append(worker)
        return self.iteration + 1

    def leave(self, worker: str) -> Receipt:
        """Let a worker go; the answer says whether the others now have their plan."""
        if worker in self._joining:
            self._joining.remove(worker)
        elif worker in self._members:
            self._go_on_without(worker)
        else:
            raise MembershipError(f"worker {worker} is not a member: {', '.join(self._members)}")
        for reports in self._reports.values():
            reports.pop(worker, None)
        return Receipt.COMPLETED if self._advance() else Receipt.ACCEPTED

    def _advance(self) -> bool:
        """Close every boundary that is complete, and say whether there was one."""
        closed = False
        while self._members and not self.waiting_for:
            rows = self._reports[self.iteration]
            members = {worker: rows[worker] for worker in self._members}
            self._keep(self._balancer.decide(Reports.gather(members, self._members)))
            del self._reports[self.iteration]
            self.iteration += 1
            closed = True
            if self._joining:
                self._change_members((*self._members, *self._joining), self.iteration)
                self._joining.clear()
        return closed

    def _go_on_without(self, worker: str) -> None:
        rest = tuple(member for member in self._members if member != worker)
        if rest:
            self._change_members(rest, self.iteration)
        elif self._joining:
            # Nobody is left to close the open boundary, and these come for the next one.
            self._change_members(tuple(self._joining), self.iteration + 1)
            self._joining.clear()
            self._reports.pop(self.iteration, None)
            self.iteration += 1
        else:
            self._members = ()

    def _change_members(self, workers: tuple[str, ...], iteration: int) -> None:
        plan = self._balancer.change_members(workers, iteration)
        self._members = workers
        self._keep(plan)

    def _keep(self, plan: Plan) -> None:
        """Keep a plan, in place of those that it comes before and that never come into force."""
        while self._plans and self._plans[-1].iteration >= plan.iteration:
            self._plans.pop()
        self._plans.append(plan)
