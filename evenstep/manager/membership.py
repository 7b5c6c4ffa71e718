"""A worker's membership in a job: its connection to the manager, and the plans received on it.

Two threads use it: the training thread makes calls, and the background thread renews the lease and
reconnects. A call without a connection returns None at once.
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
from evenstep.manager.job_settings import JobSettings
from evenstep.manager.messages import from_settings, to_plan, to_settings
from evenstep.manager.wire import types

GRACE = 5.0
"""Seconds to wait for a reply after the time at which the manager should have sent it."""
PASSING = ("UNPLANNED", "MEMBERSHIP")
"""Refusals after which the same report may be sent again."""
SOONEST, LATEST = 0.05, 2.0
"""Shortest and longest pause between two attempts to reconnect, in seconds."""

_log = logging.getLogger(__name__)


class Membership:
    """A worker's membership in a job, until it is closed."""

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
        """Why the manager is not connected, or why the last report was refused."""
        self.connection: ServiceConnection | None = None
        self.closed = False
        self.changed = threading.Condition()
        """Notified when a plan arrives, when the connection is lost, and when it is closed."""
        self.holding = Holding()
        """The plans received."""
        self.settings = settings
        """The settings of the job; None until they are known."""
        self._where = where
        self._instance = uuid.uuid4().hex
        self._in_use = threading.Lock()
        self._last_call = time.monotonic()

    def open(self, patience: float, reuse: str | None) -> None:
        """Join the job, trying for `patience` seconds."""
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
        """Make a call that waits; return None if it cannot be made or is refused."""
        if self.connection is None:
            return None
        with self._in_use:
            connection = self.connection
            if connection is None:
                return None
            try:
                result = connection.call(name, wait + GRACE, wait=wait, **arguments)
                self.failure = None
            except Refused as error:
                self._note(error)
                return None
            except ManagerUnreachable as error:
                self.drop(error)
                return None
            self._last_call = time.monotonic()
            return result

    def keep(self) -> None:
        """Renew the lease if the last call is more than a third of it ago."""
        if time.monotonic() - self._last_call <= self.lease / 3:
            return
        # A call that is waiting keeps the lease alive.
        if self._in_use.acquire(blocking=False):
            try:
                if self.connection is not None:
                    self.connection.call("renew", GRACE)
                    self._last_call = time.monotonic()
            except Refused as error:
                self._note(error)
            except ManagerUnreachable as error:
                self.drop(error)
            finally:
                self._in_use.release()

    def rejoin(self, pause: float) -> float:
        """Try to join again, and return how long to wait before the next attempt."""
        try:
            self._join()
            return SOONEST
        except EvenstepError as error:
            if isinstance(error, Refused) and str(error) != str(self.failure):
                _log.warning("worker %s of job %s cannot join: %s", self.worker, self.job, error)
            self.failure = error
        with self.changed:
            self.changed.wait_for(lambda: self.closed, pause)
        return min(LATEST, 2 * pause)

    def drop(self, error: EvenstepError | None) -> None:
        """Close a connection that cannot be used any more."""
        connection, self.connection = self.connection, None
        if error is not None:
            self.failure = error
            _log.warning("worker %s continues with the last plan: %s", self.worker, error)
        if connection is not None:
            connection.close()
        with self.changed:
            self.changed.notify_all()

    def hold(self, struct: Any) -> None:
        """Keep a plan that was received."""
        plan, workers = to_plan(struct)
        with self.changed:
            self.holding.keep(Held(plan, workers))
            self.changed.notify_all()

    def leave(self) -> None:
        """Leave the job."""
        with self._in_use:
            self.closed = True
            if self.connection is not None:
                try:
                    self.connection.call("leave", GRACE)
                except (ManagerUnreachable, Refused) as error:
                    self.failure = error

    def close(self) -> None:
        """Close the connection; the membership lasts until the lease is over."""
        self.closed = True
        self.drop(None)

    def _join(self, reuse: str | None = None) -> None:
        connection = ServiceConnection(self._where, GRACE)
        try:
            announced = self._enter(connection, reuse)
            with self._in_use:
                self.connection, self.failure = connection, None
                if self.iteration > announced:
                    # The worker passed a boundary meanwhile; the others must not wait for it there.
                    self._enter(connection)
        except BaseException:
            self.connection = None
            connection.close()
            raise
        if self.closed:
            self.drop(None)

    def _enter(self, connection: ServiceConnection, reuse: str | None = None) -> int:
        """Join on a connection, and return the boundary that the manager knows of."""
        entry = self._entry(reuse)
        membership = connection.call("join", GRACE, entry=entry)
        # Kept so that the job can be created again if the manager loses its state.
        self.settings = to_settings(membership.settings)
        self.iteration = max(self.iteration, membership.iteration)
        for plan in (*(membership.recent or ()), membership.plan):
            if plan is not None:
                self.hold(plan)
        self._last_call = time.monotonic()
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
            # The lease was over: join again.
            self.drop(error)
