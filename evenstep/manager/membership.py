"""The place of a worker in a job: its line to the manager, made again whenever it is lost, and the
plans that came over it.

Two threads use it: the one that trains makes calls, and the one in the background keeps the lease
and comes back. Who calls while there is no line gets no answer, at once.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import Any

from evenstep.core.held_plans import Held, Holding
from evenstep.errors import EvenstepError, ManagerUnreachable, Refused
from evenstep.manager.connection import ServiceConnection, Where
from evenstep.manager.idl import types
from evenstep.manager.job_settings import JobSettings
from evenstep.manager.messages import from_settings, to_plan, to_settings

GRACE = 5.0
"""Seconds that an answer may be on its way after the manager should have given it."""
PASSING = ("UNPLANNED", "MEMBERSHIP")
"""Refusals after which the same report may be handed in once more."""
SOONEST, LATEST = 0.05, 2.0
"""Seconds between two attempts to connect again: the first, and the longest."""

_log = logging.getLogger(__name__)


class Membership:
    """A worker's membership of a job, as long as it is not closed."""

    def __init__(
        self,
        where: Where,
        job: str,
        worker: str,
        settings: JobSettings | None,
        iteration: int,
        lease: float,
    ) -> None:
        self.job = job
        self.worker = worker
        self.lease = lease
        self.iteration = iteration
        """The boundary at which the worker takes part next."""
        self.failure: EvenstepError | None = None
        """Why there is no line to the manager, or why the last report was refused."""
        self.line: ServiceConnection | None = None
        self.closed = False
        self.news = threading.Condition()
        """Notified when a plan comes, when the line is lost, and at the end."""
        self.holding = Holding()
        """The plans that came."""
        self.settings = settings
        """The settings of the job; None until they are known."""
        self._where = where
        self._instance = uuid.uuid4().hex
        self._line_in_use = threading.Lock()
        self._said = time.monotonic()

    def open(self, patience: float, reuse: str | None) -> None:
        """Join the job, trying for so many seconds."""
        deadline = time.monotonic() + patience
        while True:
            try:
                self._join(reuse)
                break
            except ManagerUnreachable:
                if time.monotonic() + SOONEST > deadline:
                    raise
                time.sleep(SOONEST)

    def call(self, name: str, wait: float, **arguments: Any) -> Any:
        """Make a call that waits, or return None where it cannot be made or has no answer."""
        if self.line is None:
            return None
        with self._line_in_use:
            line = self.line
            if line is None:
                return None
            try:
                result = line.call(name, wait + GRACE, wait=wait, **arguments)
                self.failure = None
            except Refused as error:
                self._note(error)
                return None
            except ManagerUnreachable as error:
                self.drop(error)
                return None
            self._said = time.monotonic()
            return result

    def keep(self) -> None:
        """Renew the lease, if nothing was said for a third of it."""
        if time.monotonic() - self._said <= self.lease / 3:
            return
        # While another call is on the line, the manager knows that this worker is there.
        if self._line_in_use.acquire(blocking=False):
            try:
                if self.line is not None:
                    self.line.call("renew", GRACE)
                    self._said = time.monotonic()
            except Refused as error:
                self._note(error)
            except ManagerUnreachable as error:
                self.drop(error)
            finally:
                self._line_in_use.release()

    def come_back(self, pause: float) -> float:
        """Try to join again, and return how long to wait before the next attempt."""
        try:
            self._join()
            return SOONEST
        except EvenstepError as error:
            self.failure = error
        with self.news:
            self.news.wait_for(lambda: self.closed, pause)
        return min(LATEST, 2 * pause)

    def drop(self, error: EvenstepError | None) -> None:
        """Let the line go, which is of no use."""
        line, self.line = self.line, None
        if error is not None:
            self.failure = error
            _log.warning("worker %s goes on with the last plan: %s", self.worker, error)
        if line is not None:
            line.close()
        with self.news:
            self.news.notify_all()

    def hold(self, struct: Any) -> None:
        """Keep a plan that has come."""
        plan, workers = to_plan(struct)
        with self.news:
            self.holding.keep(Held(plan, workers))
            self.news.notify_all()

    def leave(self) -> None:
        """Give the place up."""
        with self._line_in_use:
            self.closed = True
            if self.line is not None:
                try:
                    self.line.call("leave", GRACE)
                except (ManagerUnreachable, Refused) as error:
                    self.failure = error

    def close(self) -> None:
        """Close the line; the place is kept for the length of the lease."""
        self.closed = True
        self.drop(None)

    def _join(self, reuse: str | None = None) -> None:
        line = ServiceConnection(self._where, GRACE)
        try:
            told = self._enter(line, reuse)
            with self._line_in_use:
                self.line, self.failure = line, None
                if self.iteration > told:
                    # A boundary went by meanwhile, at which the others must not wait for this one.
                    self._enter(line)
        except BaseException:
            self.line = None
            line.close()
            raise
        if self.closed:
            self.drop(None)

    def _enter(self, line: ServiceConnection, reuse: str | None = None) -> int:
        """Join on a line, and return at which boundary."""
        entry = self._entry(reuse)
        membership = line.call("join", GRACE, entry=entry)
        # With them the job can be made again, should the manager have lost everything.
        self.settings = to_settings(membership.settings)
        self.iteration = max(self.iteration, membership.iteration)
        for plan in (*(membership.recent or ()), membership.plan):
            if plan is not None:
                self.hold(plan)
        self._said = time.monotonic()
        return max(int(entry.iteration), int(membership.iteration))

    def _entry(self, reuse: str | None) -> Any:
        return types().Entry(
            job=self.job,
            worker=self.worker,
            iteration=self.iteration,
            lease=self.lease,
            settings=None if self.settings is None else from_settings(self.settings),
            instance=self._instance,
            reuse=reuse,
        )

    def _note(self, error: Refused) -> None:
        self.failure = error
        if error.problem not in PASSING:
            _log.warning("worker %s of job %s: %s", self.worker, self.job, error)
        if error.problem == "MEMBERSHIP":
            # The lease was over: come back.
            self.drop(error)
