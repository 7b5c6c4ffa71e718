"""The client of a worker: reports go to the manager, plans come back, and training never stops.

- A background thread keeps the lease, and connects again when the line is lost. While there is no
  manager, the worker goes on with the last plan, at once.
- Blocking: `boundary` returns when every member has reported, at most `timeout` seconds later.
- Non-blocking: the background thread hands in the newest report and waits; `boundary` leaves it
  there and returns the newest plan that has come.
- Which plan all workers use in an iteration is decided by whoever sees them all: the gradient
  exchange, which carries `newest` of each worker, so that all use `numbered(smallest)`; where there
  is none, `agree` asks the manager, and keeps the last common plan when that fails.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from types import TracebackType
from typing import Any

from evenstep.coordination.holding import Held, Holding
from evenstep.core.plan import Plan
from evenstep.core.report import Report
from evenstep.errors import (
    EvenstepError,
    InvalidReport,
    ManagerUnreachable,
    OutOfTurn,
    Refused,
    Unplanned,
)
from evenstep.manager.idl import types
from evenstep.manager.line import Line, Where
from evenstep.manager.messages import from_report, from_settings, to_plan, to_settings
from evenstep.manager.settings import Settings

GRACE = 5.0
"""Seconds that an answer may be on its way after the manager should have given it."""
_SLICE = 0.5
"""Seconds that the background thread waits for a plan before it looks for a newer report."""
_PASSING = ("UNPLANNED", "MEMBERSHIP")
"""Refusals after which the same report may be handed in once more."""
_SOONEST, _LATEST = 0.05, 2.0
"""Seconds between two attempts to connect again: the first, and the longest."""

_log = logging.getLogger(__name__)


class ManagerClient:
    """A coordinator for one worker of a job; `evenstep.connect` makes it."""

    def __init__(
        self,
        where: Where,
        job: str,
        worker: str,
        settings: Settings | None,
        iteration: int,
        blocking: bool,
        agree: bool,
        lease: float,
        timeout: float,
    ) -> None:
        self.job = job
        self.worker = worker
        self.blocking = blocking
        self._where = where
        self._instance = uuid.uuid4().hex
        self._settings = settings
        self._agree = agree
        self._lease = lease
        self._timeout = timeout
        self._next = iteration
        self._holding = Holding()
        self._used: Held | None = None
        self._line: Line | None = None
        self._line_in_use = threading.Lock()
        self._news = threading.Condition()
        self._mail: Report | None = None
        self._closed = False
        self._said = time.monotonic()
        self.failure: EvenstepError | None = None
        """Why there is no line to the manager, or why the last report was refused."""
        self._keeper = threading.Thread(target=self._keep, name="evenstep-manager", daemon=True)

    @property
    def newest(self) -> int:
        """Number of the newest plan that this worker holds; -1 before the first."""
        held = self._holding.newest
        return -1 if held is None else held.plan.number

    @property
    def connected(self) -> bool:
        return self._line is not None

    @property
    def iteration(self) -> int:
        """The boundary at which this worker takes part next."""
        return self._next

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
        deadline = time.monotonic() + patience
        while True:
            try:
                self._join(reuse)
                break
            except ManagerUnreachable:
                if time.monotonic() + _SOONEST > deadline:
                    raise
                time.sleep(_SOONEST)
        self._keeper.start()

    def boundary(self, report: Report) -> Plan:
        """Hand in a report and return the plan of the iteration about to start.

        It is the last plan where the manager is away or others are too slow; Unplanned is raised
        where there is none yet.
        """
        if report.worker != self.worker:
            raise InvalidReport(
                f"a report must be that of worker {self.worker}, got {report.worker}"
            )
        if self.blocking:
            self._report(report, self._timeout)
        else:
            self._post(report)
        if self._agree:
            return self.agree(report.iteration)
        return self._use(self._holding.newest)

    def numbered(self, number: int) -> Plan:
        """Return the plan with a number that all workers hold, and use it from now on."""
        return self._use(self._holding.numbered(number))

    def agree(self, iteration: int, timeout: float | None = None) -> Plan:
        """Agree with all members on the plan of an iteration, through the manager.

        It takes at most `timeout` seconds; where it fails, the last common plan is kept.
        """
        if self.newest < 0:
            return self._use(None)
        wait = self._timeout if timeout is None else timeout
        number = self._call("agree", wait, iteration=iteration, number=self.newest)
        if number is not None:
            try:
                self._used = self._holding.numbered(number)
            except OutOfTurn as error:
                self.failure = error
        return self._use(self._used or self._holding.newest)

    def leave(self) -> None:
        """Leave the job, so that nobody waits for this worker, and close the line."""
        with self._line_in_use:
            self._closed = True
            if self._line is not None:
                try:
                    self._line.call("leave", GRACE)
                except (ManagerUnreachable, Refused) as error:
                    self.failure = error
        self.close()

    def close(self) -> None:
        """Close the line without leaving: the place is kept for the length of the lease."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        self._drop(None)
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

    def _use(self, held: Held | None) -> Plan:
        if held is None:
            why = f": {self.failure}" if self.failure else ""
            raise Unplanned(f"worker {self.worker} of job {self.job} has no plan yet{why}")
        self._used = held
        return held.plan

    def _post(self, report: Report) -> None:
        """Leave a report for the background thread; a newer one replaces it."""
        self._next = max(self._next, report.iteration + 1)
        with self._news:
            self._mail = report
            self._news.notify_all()
            if self._holding.newest is None:
                # The very first plan is waited for: there is nothing else to go on with.
                self._news.wait_for(lambda: self._holding.newest is not None, self._timeout)

    def _report(self, report: Report, wait: float) -> bool:
        """Hand in a report, and say whether a plan came back."""
        self._next = max(self._next, report.iteration)
        held = None if self.newest < 0 else self.newest
        struct = self._call("report", wait, report=from_report(report, held))
        if struct is not None:
            self._hold(struct)
        self._next = max(self._next, report.iteration + 1)
        return struct is not None

    def _call(self, name: str, wait: float, **arguments: Any) -> Any:
        """Make a call that waits, or return None where it cannot be made or has no answer."""
        if self._line is None:
            return None
        with self._line_in_use:
            line = self._line
            if line is None:
                return None
            try:
                result = line.call(name, wait + GRACE, wait=wait, **arguments)
                self.failure = None
            except Refused as error:
                self._note(error)
                return None
            except ManagerUnreachable as error:
                self._drop(error)
                return None
            self._said = time.monotonic()
            return result

    def _note(self, error: Refused) -> None:
        self.failure = error
        if error.problem not in _PASSING:
            _log.warning("worker %s of job %s: %s", self.worker, self.job, error)
        if error.problem == "MEMBERSHIP":
            # The lease was over: come back.
            self._drop(error)

    def _hold(self, struct: Any) -> None:
        plan, workers = to_plan(struct)
        with self._news:
            self._holding.keep(Held(plan, workers))
            self._news.notify_all()

    def _join(self, reuse: str | None = None) -> None:
        line = Line(self._where, GRACE)
        try:
            settings = None if self._settings is None else from_settings(self._settings)
            entry = types().Entry(
                job=self.job,
                worker=self.worker,
                iteration=self._next,
                lease=self._lease,
                settings=settings,
                instance=self._instance,
                reuse=reuse,
            )
            membership = line.call("join", GRACE, entry=entry)
        except BaseException:
            line.close()
            raise
        # With them the job can be made again, should the manager have lost everything.
        self._settings = to_settings(membership.settings)
        self._next = max(self._next, membership.iteration)
        for plan in (*(membership.recent or ()), membership.plan):
            if plan is not None:
                self._hold(plan)
        self._said = time.monotonic()
        self._line, self.failure = line, None
        if self._closed:
            self._drop(None)

    def _drop(self, error: EvenstepError | None) -> None:
        line, self._line = self._line, None
        if error is not None:
            self.failure = error
            _log.warning("worker %s goes on with the last plan: %s", self.worker, error)
        if line is not None:
            line.close()
        with self._news:
            self._news.notify_all()

    def _keep(self) -> None:
        """Keep the lease, come back when the line is lost, and deliver what was posted."""
        pause = _SOONEST
        while not self._closed:
            if self._line is None:
                pause = self._come_back(pause)
                continue
            pause = _SOONEST
            report = self._next_mail()
            if report is not None:
                self._deliver(report)
            elif time.monotonic() - self._said > self._lease / 3:
                self._renew()

    def _deliver(self, report: Report) -> None:
        """Hand in what was posted; once more if there is no plan yet, and nothing newer to say."""
        planned = self._report(report, _SLICE)
        refused = isinstance(self.failure, Refused) and self.failure.problem not in _PASSING
        if not (planned or refused):
            with self._news:
                self._mail = self._mail or report

    def _next_mail(self) -> Report | None:
        with self._news:
            self._news.wait_for(
                lambda: self._mail is not None or self._closed or self._line is None,
                self._lease / 3,
            )
            report, self._mail = self._mail, None
            return report

    def _renew(self) -> None:
        # While another call is on the line, the manager knows that this worker is there.
        if self._line_in_use.acquire(blocking=False):
            try:
                if self._line is not None:
                    self._line.call("renew", GRACE)
                    self._said = time.monotonic()
            except Refused as error:
                self._note(error)
            except ManagerUnreachable as error:
                self._drop(error)
            finally:
                self._line_in_use.release()

    def _come_back(self, pause: float) -> float:
        """Try to join again, and return how long to wait before the next attempt."""
        try:
            self._join()
            return _SOONEST
        except EvenstepError as error:
            self.failure = error
        with self._news:
            self._news.wait_for(lambda: self._closed, pause)
        return min(_LATEST, 2 * pause)
