"""The interface of coordinators, which answer a worker's report with a plan.

`InProcessCoordinator` implements it for workers that are threads of one process.
"""

from __future__ import annotations

import threading
from typing import Protocol, runtime_checkable

from evenstep.core.held_plans import Held
from evenstep.core.plan import Plan
from evenstep.core.report import Report
from evenstep.core.session import Session
from evenstep.errors import Unplanned


class Coordinator(Protocol):
    """Turns the reports of all workers into plans, in this process or another."""

    def boundary(self, report: Report) -> Plan:
        """Report for a worker and return the plan of the iteration about to start."""
        ...


class JobSettings(Protocol):
    """The settings by which the plans of a job are made, the same for all of its workers."""

    @property
    def workers(self) -> int: ...

    @property
    def total(self) -> int: ...

    @property
    def policy(self) -> str: ...

    @property
    def predictor(self) -> str: ...

    @property
    def minimum(self) -> int: ...

    @property
    def granularity(self) -> int: ...


@runtime_checkable
class JobCoordinator(Protocol):
    """The coordinator of one worker of a job, whose plans come over a network that may fail.

    It keeps the last plans received, so that all workers can use one that all of them hold.
    """

    @property
    def job(self) -> str:
        """The name of the job."""
        ...

    @property
    def worker(self) -> str:
        """The name of the worker in it."""
        ...

    @property
    def settings(self) -> JobSettings: ...

    @property
    def iteration(self) -> int:
        """The boundary at which this worker takes part next."""
        ...

    @property
    def blocking(self) -> bool:
        """Whether `boundary` waits for the plan that this boundary's reports make."""
        ...

    @property
    def agrees(self) -> bool:
        """Whether `boundary` also agrees with the other workers on the plan."""
        ...

    @property
    def timeout(self) -> float:
        """Seconds that `boundary` waits by default."""
        ...

    @property
    def held(self) -> tuple[Held, ...]:
        """The last plans received, the newest first."""
        ...

    def boundary(self, report: Report, timeout: float | None = None) -> Plan:
        """Send the worker's report; return the newest plan, or raise where there is none."""
        ...

    def use(self, held: Held | None) -> Plan:
        """Record the plan that is used from now on."""
        ...


class InProcessCoordinator:
    """Answers the reports of threads with plans; all of them wait until all have reported."""

    def __init__(self, session: Session, timeout: float = 60.0) -> None:
        self._session = session
        self._timeout = timeout
        self._changed = threading.Condition()

    def boundary(self, report: Report) -> Plan:
        """Take a report and wait for the plan, at most `timeout` seconds."""
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
        """Remove a worker; the others no longer wait for it."""
        with self._changed:
            self._session.leave(worker)
            self._changed.notify_all()

    def _is_closed(self, iteration: int) -> bool:
        return self._session.iteration > iteration
