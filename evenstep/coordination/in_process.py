"""The in-process coordinator: workers that are threads of one process."""

from __future__ import annotations

import threading

from evenstep.coordination.session import Session
from evenstep.core.plan import Plan
from evenstep.core.report import Report
from evenstep.errors import Unplanned


class InProcessCoordinator:
    """Lets threads trade reports for plans; everybody waits until everybody has reported."""

    def __init__(self, session: Session, timeout: float = 60.0) -> None:
        self._session = session
        self._timeout = timeout
        self._changed = threading.Condition()

    def boundary(self, report: Report) -> Plan:
        """Hand in a report and wait for the plan, at most `timeout` seconds."""
        with self._changed:
            self._session.report(report)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closed(report.iteration), self._timeout)
            plan = self._session.plan_for(report.iteration)
            if plan is None:
                missing = ", ".join(self._session.waiting_for)
                raise Unplanned(
                    f"the plan of iteration {report.iteration} must come within "
                    f"{self._timeout:g} s, but nothing was heard from {missing}"
                )
            return plan

    def join(self, worker: str) -> int:
        """Make a worker a member, and return the first boundary that it takes part in."""
        with self._changed:
            return self._session.join(worker)

    def leave(self, worker: str) -> None:
        """Let a worker go, and the others no longer wait for it."""
        with self._changed:
            self._session.leave(worker)
            self._changed.notify_all()

    def _is_closed(self, iteration: int) -> bool:
        return self._session.iteration > iteration
