"""The client of a worker: sends reports to the manager, receives plans, and never stops training.

- A background thread renews the lease and reconnects after a lost connection. While the manager is
  unreachable, the worker continues with the last plan without waiting.
- Blocking: `boundary` returns when every member has reported, at most `timeout` seconds later.
- Non-blocking: `boundary` leaves the report for the background thread, which sends it and waits
  for the plan, and returns the newest plan received so far.
- All workers must use the same plan in an iteration. In a loop that exchanges gradients, `show`
  sends the report and returns marks of the plans held, the loop exchanges them, and `choose`
  picks the newest plan that all workers have shown. In a loop without an exchange, `agree` asks the
  manager, and keeps the last common plan if that fails.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import Plan, Report
from evenstep.core.held_plans import CommonPlan, Held
from evenstep.errors import (
    EvenstepError,
    InvalidReport,
    InvalidSetting,
    OutOfTurn,
    Refused,
    Unplanned,
)
from evenstep.manager.access import client_context
from evenstep.manager.connection import Where
from evenstep.manager.job import DEFAULT_LEASE, LONGEST_WAIT, check_seconds
from evenstep.manager.job_settings import JobSettings, check_name
from evenstep.manager.membership import GRACE, PASSING, SOONEST, Membership
from evenstep.manager.messages import from_report
from evenstep.policies import default_policy
from evenstep.predictors import DEFAULT_PREDICTOR

_SLICE = 0.5
"""Seconds that the background thread waits for a plan before it checks for a newer report."""


class ManagerClient:
    """A coordinator for one worker of a job; `evenstep.connect` makes it."""

    def __init__(self, membership: Membership, blocking: bool, agree: bool, timeout: float) -> None:
        self.job = membership.job
        self.worker = membership.worker
        self.blocking = blocking
        self.agrees = agree
        """Whether `boundary` agrees with the other members, through the manager."""
        self.timeout = timeout
        """Seconds to wait at a boundary before continuing with the last plan."""
        self._membership = membership
        self._holding = membership.holding
        self._used: Held | None = None
        self._common = CommonPlan()
        self._posted: Report | None = None
        self._keeper = threading.Thread(target=self._keep, name="evenstep-manager", daemon=True)

    @property
    def newest(self) -> int:
        """Number of the newest plan that this worker holds; -1 before the first."""
        held = self._holding.newest
        return -1 if held is None else held.plan.number

    @property
    def held(self) -> tuple[Held, ...]:
        """The last plans that this worker received, newest first."""
        return self._holding.all

    @property
    def settings(self) -> JobSettings:
        """The settings of the job."""
        settings = self._membership.settings
        assert settings is not None, "connect returns only clients that have joined"
        return settings

    @property
    def connected(self) -> bool:
        return self._membership.connection is not None

    @property
    def failure(self) -> EvenstepError | None:
        """Why the manager is not connected, or why the last report was refused."""
        return self._membership.failure

    @property
    def iteration(self) -> int:
        """The boundary at which this worker takes part next."""
        return self._membership.iteration

    @property
    def workers(self) -> tuple[str, ...]:
        """The members of the plan returned last, in the order of its sizes."""
        held = self._used or self._holding.newest
        return () if held is None else held.workers

    @property
    def batch_size(self) -> int:
        """The size of this worker in the plan returned last; 0 if the plan does not include it."""
        held = self._used or self._holding.newest
        return 0 if held is None else held.size_of(self.worker)

    def open(self, patience: float, reuse: str | None = None) -> None:
        """Join the job, trying for `patience` seconds, and start the background thread.

        If this creates the job, the job begins with the learned state of the job called `reuse`.
        """
        self._membership.open(patience, reuse)
        self._keeper.start()

    def boundary(self, report: Report, timeout: float | None = None) -> Plan:
        """Send a report and return the plan of the iteration about to start.

        That is the last plan if the manager is unreachable or other workers are too slow; raises
        Unplanned if there is none yet. `timeout` replaces the usual one for this call.
        """
        wait = self.timeout if timeout is None else timeout
        self._hand_in(report, wait)
        if self.agrees:
            return self.agree(report.iteration, wait)
        return self.use(self._holding.newest)

    def show(self, report: Report, timeout: float | None = None) -> NDArray[np.float32]:
        """Send a report, and return marks of the plans held, to be exchanged with all workers.

        They are nine numbers that a float32 represents exactly. It waits as `boundary` does.
        """
        self._hand_in(report, self.timeout if timeout is None else timeout)
        return self._common.show(self._holding.all)

    def choose(self, marks: NDArray[Any]) -> Plan:
        """Return the plan of the iteration about to start, by the marks of all workers.

        `marks` has one row per worker, in any order: the values that `show` returned there. All
        workers choose the same plan: the newest one that all of them hold, or else the plan in use.
        Raises Unplanned on a worker that has neither, which skips the iteration.
        """
        return self.use(self._common.choose(marks))

    def agree(self, iteration: int, timeout: float | None = None) -> Plan:
        """Agree with all members on the plan of an iteration, through the manager.

        It takes at most `timeout` seconds; if it fails, the last common plan is kept.
        """
        if self.newest < 0:
            return self.use(None)
        wait = self.timeout if timeout is None else timeout
        number = self._membership.call("agree", wait, iteration=iteration, number=self.newest)
        if number is not None:
            try:
                self._used = self._holding.numbered(number)
            except OutOfTurn as error:
                self._membership.failure = error
        return self.use(self._used or self._holding.newest)

    def leave(self) -> None:
        """Leave the job, so that no other worker waits for this one, and close the connection."""
        self._membership.leave()
        self.close()

    def close(self) -> None:
        """Close the connection without leaving: the membership lasts until the lease is over."""
        self._membership.close()
        if self._keeper.ident is not None and self._keeper is not threading.current_thread():
            self._keeper.join(GRACE)

    def __enter__(self) -> ManagerClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.leave()
        else:
            self.close()

    def use(self, held: Held | None) -> Plan:
        """Use a plan from now on, and return it; raises Unplanned if there is none."""
        if held is None:
            why = f": {self.failure}" if self.failure else ""
            raise Unplanned(f"worker {self.worker} of job {self.job} has no plan yet{why}")
        self._used = held
        return held.plan

    def _hand_in(self, report: Report, wait: float) -> None:
        if report.worker != self.worker:
            raise InvalidReport(
                f"a report must be that of worker {self.worker}, got {report.worker}"
            )
        if self.blocking:
            self._report(report, wait)
        else:
            self._post(report, wait)

    def _post(self, report: Report, wait: float) -> None:
        """Leave a report for the background thread; a newer one replaces it."""
        self._membership.iteration = max(self._membership.iteration, report.iteration + 1)
        with self._membership.changed:
            self._posted = report
            self._membership.changed.notify_all()
            if self._holding.newest is None:
                # Wait for the very first plan: there is no other to use.
                self._membership.changed.wait_for(lambda: self._holding.newest is not None, wait)

    def _report(self, report: Report, wait: float) -> bool:
        """Send a report, and return whether a plan came back."""
        # First, so that a reconnect during this call joins at the right iteration.
        self._membership.iteration = max(self._membership.iteration, report.iteration + 1)
        held = None if self.newest < 0 else self.newest
        struct = self._membership.call("report", wait, report=from_report(report, held))
        if struct is not None:
            self._membership.hold(struct)
        return struct is not None

    def _keep(self) -> None:
        """Renew the lease, reconnect after a lost connection, and deliver posted reports."""
        pause = SOONEST
        while not self._membership.closed:
            if self._membership.connection is None:
                pause = self._membership.rejoin(pause)
                continue
            pause = SOONEST
            report = self._next_posted()
            if report is not None:
                self._deliver(report)
            else:
                self._membership.keep()

    def _deliver(self, report: Report) -> None:
        """Send a posted report; post it again if no plan came and no newer report was posted."""
        planned = self._report(report, _SLICE)
        refused = isinstance(self.failure, Refused) and self.failure.problem not in PASSING
        if not (planned or refused):
            with self._membership.changed:
                self._posted = self._posted or report

    def _next_posted(self) -> Report | None:
        with self._membership.changed:
            self._membership.changed.wait_for(
                lambda: (
                    self._posted is not None
                    or self._membership.closed
                    or self._membership.connection is None
                ),
                self._membership.lease / 3,
            )
            report, self._posted = self._posted, None
            return report


def connect(
    address: str,
    job: str,
    worker: str,
    *,
    workers: int | None = None,
    total: int | None = None,
    policy: str | None = None,
    predictor: str = DEFAULT_PREDICTOR,
    on_cpus: bool = False,
    minimum: int = 1,
    granularity: int = 1,
    elastic: bool = False,
    reuse: str | None = None,
    iteration: int = 0,
    blocking: bool = True,
    agree: bool = False,
    lease: float = DEFAULT_LEASE,
    timeout: float = 60.0,
    patience: float = 10.0,
    token: str | None = None,
    ca: str | Path | None = None,
) -> ManagerClient:
    """Join a job of the manager at HOST:PORT as a worker, and return its coordinator.

    With `workers` and `total` the job is created if it does not exist; it then begins with the
    learned state of the job called `reuse`. `on_cpus` says that the workers compute on CPUs and
    report their usage, which the default of `policy` depends on. Further workers may join an
    `elastic` job. `iteration` is the one that the worker is about to start. `ca` names a file of
    trusted certificates, and turns TLS on.
    """
    if (workers is None) != (total is None):
        raise InvalidSetting(
            f"workers and total of a job must be given together, got {workers} and {total}"
        )
    if reuse is not None and workers is None:
        raise InvalidSetting(f"reuse must go with workers and total of a job, got only {reuse}")
    if agree and not blocking:
        raise InvalidSetting("agree=True must go with blocking=True: an agreement is waited for")
    settings = None
    if workers is not None and total is not None:
        policy = policy or default_policy("cpu" if on_cpus else None, reads_usage=on_cpus)
        settings = JobSettings(
            workers, total, policy, predictor, minimum, granularity, elastic
        ).check()
    membership = Membership(
        Where(address, token, None if ca is None else client_context(ca)),
        check_name("job", job),
        check_name("worker", worker),
        settings,
        iteration,
        check_seconds("lease", lease),
    )
    wait = check_seconds("timeout", timeout, LONGEST_WAIT)
    client = ManagerClient(membership, blocking, agree, wait)
    client.open(patience, None if reuse is None else check_name("job", reuse))
    return client
