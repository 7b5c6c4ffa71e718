"""The client of a worker: reports go to the manager, plans come back, and training never stops.

- A background thread keeps the lease, and connects again when the line is lost. While there is no
  manager, the worker goes on with the last plan, at once.
- Blocking: `boundary` returns when every member has reported, at most `timeout` seconds later.
- Non-blocking: the background thread hands in the newest report and waits; `boundary` leaves it
  there and returns the newest plan that has come.
- Which plan all workers use in an iteration is decided where all of them meet. In a loop that
  exchanges gradients, `show` hands in the report and returns marks of the plans held, the loop
  exchanges them, and `choose` picks the newest plan that everybody has shown. In a loop without an
  exchange `agree` asks the manager, and keeps the last common plan when that fails.
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
from evenstep.manager.job_settings import JobSettings, check_name
from evenstep.manager.lease import DEFAULT_LEASE, LONGEST_WAIT, check_seconds
from evenstep.manager.membership import GRACE, PASSING, SOONEST, Membership
from evenstep.manager.messages import from_report
from evenstep.policies.default import default_policy
from evenstep.predictors import DEFAULT_PREDICTOR

_SLICE = 0.5
"""Seconds that the background thread waits for a plan before it looks for a newer report."""


class ManagerClient:
    """A coordinator for one worker of a job; `evenstep.connect` makes it."""

    def __init__(self, place: Membership, blocking: bool, agree: bool, timeout: float) -> None:
        self.job = place.job
        self.worker = place.worker
        self.blocking = blocking
        self.agrees = agree
        """Whether `boundary` agrees with the other members, through the manager."""
        self.timeout = timeout
        """Seconds that are waited at a boundary, before going on with the last plan."""
        self._place = place
        self._holding = place.holding
        self._used: Held | None = None
        self._common = CommonPlan()
        self._mail: Report | None = None
        self._keeper = threading.Thread(target=self._keep, name="evenstep-manager", daemon=True)

    @property
    def newest(self) -> int:
        """Number of the newest plan that this worker holds; -1 before the first."""
        held = self._holding.newest
        return -1 if held is None else held.plan.number

    @property
    def held(self) -> tuple[Held, ...]:
        """The last plans that this worker has got, the newest first."""
        return self._holding.all

    @property
    def settings(self) -> JobSettings:
        """The settings of the job."""
        settings = self._place.settings
        assert settings is not None, "a client has joined when it is handed out"
        return settings

    @property
    def connected(self) -> bool:
        return self._place.line is not None

    @property
    def failure(self) -> EvenstepError | None:
        """Why there is no line to the manager, or why the last report was refused."""
        return self._place.failure

    @property
    def iteration(self) -> int:
        """The boundary at which this worker takes part next."""
        return self._place.iteration

    @property
    def workers(self) -> tuple[str, ...]:
        """The members that the plan returned last is for, in the order of its sizes."""
        held = self._used or self._holding.newest
        return () if held is None else held.workers

    @property
    def batch_size(self) -> int:
        """The size of this worker in the plan returned last; 0 where it has no part in it."""
        held = self._used or self._holding.newest
        return 0 if held is None else held.size_of(self.worker)

    def open(self, patience: float, reuse: str | None = None) -> None:
        """Join the job, trying for so many seconds, and begin to keep the lease.

        If that creates it, it begins with what the job called `reuse` has learned.
        """
        self._place.open(patience, reuse)
        self._keeper.start()

    def boundary(self, report: Report, timeout: float | None = None) -> Plan:
        """Hand in a report and return the plan of the iteration about to start.

        It is the last plan where the manager is away or others are too slow; Unplanned is raised
        where there is none yet. `timeout` is another than usual, for this time.
        """
        wait = self.timeout if timeout is None else timeout
        self._hand_in(report, wait)
        if self.agrees:
            return self.agree(report.iteration, wait)
        return self.use(self._holding.newest)

    def show(self, report: Report, timeout: float | None = None) -> NDArray[np.float32]:
        """Hand in a report, and return marks of the plans held, for all workers to see.

        They are nine numbers, which a float32 keeps. It waits as `boundary` does.
        """
        self._hand_in(report, self.timeout if timeout is None else timeout)
        return self._common.show(self._holding.all)

    def choose(self, marks: NDArray[Any]) -> Plan:
        """Return the plan of the iteration about to start, by the marks of all workers.

        `marks` has what `show` returned on each of them, one row per worker, in any order. All
        workers choose the same: the newest plan that all of them hold, or else the plan in use.
        Unplanned is raised on a worker that has neither, which sits the iteration out.
        """
        return self.use(self._common.choose(marks))

    def agree(self, iteration: int, timeout: float | None = None) -> Plan:
        """Agree with all members on the plan of an iteration, through the manager.

        It takes at most `timeout` seconds; where it fails, the last common plan is kept.
        """
        if self.newest < 0:
            return self.use(None)
        wait = self.timeout if timeout is None else timeout
        number = self._place.call("agree", wait, iteration=iteration, number=self.newest)
        if number is not None:
            try:
                self._used = self._holding.numbered(number)
            except OutOfTurn as error:
                self._place.failure = error
        return self.use(self._used or self._holding.newest)

    def leave(self) -> None:
        """Leave the job, so that nobody waits for this worker, and close the line."""
        self._place.leave()
        self.close()

    def close(self) -> None:
        """Close the line without leaving: the place is kept for the length of the lease."""
        self._place.close()
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
        """Use a plan from now on, and return it; Unplanned is raised where there is none."""
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
        self._place.iteration = max(self._place.iteration, report.iteration + 1)
        with self._place.news:
            self._mail = report
            self._place.news.notify_all()
            if self._holding.newest is None:
                # The very first plan is waited for: there is nothing else to go on with.
                self._place.news.wait_for(lambda: self._holding.newest is not None, wait)

    def _report(self, report: Report, wait: float) -> bool:
        """Hand in a report, and say whether a plan came back."""
        # Before anything else: who comes back while this goes by tells the manager so.
        self._place.iteration = max(self._place.iteration, report.iteration + 1)
        held = None if self.newest < 0 else self.newest
        struct = self._place.call("report", wait, report=from_report(report, held))
        if struct is not None:
            self._place.hold(struct)
        return struct is not None

    def _keep(self) -> None:
        """Keep the lease, come back when the line is lost, and deliver what was posted."""
        pause = SOONEST
        while not self._place.closed:
            if self._place.line is None:
                pause = self._place.come_back(pause)
                continue
            pause = SOONEST
            report = self._next_mail()
            if report is not None:
                self._deliver(report)
            else:
                self._place.keep()

    def _deliver(self, report: Report) -> None:
        """Hand in what was posted; once more if there is no plan yet, and nothing newer to say."""
        planned = self._report(report, _SLICE)
        refused = isinstance(self.failure, Refused) and self.failure.problem not in PASSING
        if not (planned or refused):
            with self._place.news:
                self._mail = self._mail or report

    def _next_mail(self) -> Report | None:
        with self._place.news:
            self._place.news.wait_for(
                lambda: self._mail is not None or self._place.closed or self._place.line is None,
                self._place.lease / 3,
            )
            report, self._mail = self._mail, None
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

    With `workers` and `total` the job is created if it is not there; it begins with what the job
    called `reuse` has learned. `on_cpus` says that the workers compute on CPUs and report their
    usage, which the default of `policy` depends on. `iteration` is the one that the worker is about
    to start. `ca` names a file of certificates to believe, and turns TLS on.
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
        settings = JobSettings(workers, total, policy, predictor, minimum, granularity)
    place = Membership(
        Where(address, token, None if ca is None else client_context(ca)),
        check_name("job", job),
        check_name("worker", worker),
        settings,
        iteration,
        check_seconds("lease", lease),
    )
    wait = check_seconds("timeout", timeout, LONGEST_WAIT)
    client = ManagerClient(place, blocking, agree, wait)
    client.open(patience, None if reuse is None else check_name("job", reuse))
    return client
