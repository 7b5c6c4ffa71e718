"""The Thrift service of the manager: answers the calls of `manager.thrift`, without sockets.

Everything here runs on one thread, so nothing needs a lock. A call that must wait is set aside and
answered when its job changes, so that no job delays another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from thriftpy2.thrift import TMessageType

from evenstep.errors import (
    EvenstepError,
    LimitReached,
    MembershipError,
    OutOfTurn,
    Refused,
    Unplanned,
)
from evenstep.manager import wire
from evenstep.manager.access import admitted_job
from evenstep.manager.buffers import Octets
from evenstep.manager.client_connection import ClientConnection, Replies
from evenstep.manager.connection import MANAGER
from evenstep.manager.job import LONGEST_WAIT, Job, check_seconds
from evenstep.manager.job_settings import check_name
from evenstep.manager.job_store import LearnedState
from evenstep.manager.jobs import Jobs
from evenstep.manager.log_format import Seldom
from evenstep.manager.messages import (
    from_job,
    from_membership,
    from_plan,
    require_count,
    required,
    to_report,
    to_settings,
)
from evenstep.manager.pending_calls import PendingCall, PendingCalls

_log = logging.getLogger(__name__)


MOST_MAKING = 64
"""Jobs that may wait to be made."""


class Service:
    """Answers calls, message by message."""

    def __init__(self, jobs: Jobs, clock: Callable[[], float], token: str | None = None) -> None:
        self.jobs = jobs
        self._replies = Replies(MANAGER)
        self.refused = self._replies.refused
        self.num_leases_lost = 0
        self._clock = clock
        self._token = token
        self._pending = PendingCalls()
        self._peers: dict[tuple[Job, str], ClientConnection] = {}
        self._bodies: WeakKeyDictionary[Job, tuple[tuple[int, int], bytes]] = WeakKeyDictionary()
        self._num_making = 0
        self._failures = Seldom(_log)
        self._calls: dict[str, Callable[[ClientConnection, Any, wire.Message], bytes | None]] = {
            "hello": self._hello,
            "create": self._create,
            "join": self._join,
            "report": self._report,
            "agree": self._agree,
            "renew": self._renew,
            "leave": self._leave,
            "status": self._status,
        }

    def handle(self, peer: ClientConnection, content: Octets) -> None:
        """Answer one message; raises MalformedMessage if it is not one."""
        message = wire.parse_message(content)
        call = self._calls.get(message.name)
        if call is None or message.kind != TMessageType.CALL:
            self._replies.refuse_unknown(peer, message, self._calls)
            return
        arguments = self._replies.arguments(message)

        def answer() -> bytes | None:
            if not peer.greeted and message.name != "hello":
                raise Refused("TOKEN", "the first call on a connection must be hello")
            return call(peer, arguments, message)

        self._try(peer, message, answer)

    def _try(
        self, peer: ClientConnection, message: wire.Message, answer: Callable[[], bytes | None]
    ) -> None:
        """Send the answer to a call, or the reason why there is none; None means later."""
        try:
            body = answer()
        except EvenstepError as error:
            self._replies.refuse(peer, message, error)
        except Exception:
            self._failures.warning("%s failed", message.name, exc_info=True)
            self._replies.fail(peer, message)
        else:
            if body is not None:
                self._answer(peer, message, body)

    def lost(self, peer: ClientConnection) -> None:
        """Record that a connection was closed."""
        peer.gone = True
        self._forget(peer)

    def _forget(self, peer: ClientConnection) -> None:
        """Record that a connection is no longer that of its worker."""
        if peer.job is not None and self._peers.get((peer.job, peer.worker)) is peer:
            del self._peers[peer.job, peer.worker]
            self._pending.remove(peer.job, peer.worker)
            peer.job.disconnect(peer.worker, self._clock())
            self._pending.release(peer.job)

    def sweep(self) -> None:
        """Remove workers whose lease is over, and fail calls past their deadline."""
        now = self._clock()
        self._pending.expire(now)
        for job in self.jobs:
            self._sweep(job, now)

    def _sweep(self, job: Job, now: float) -> None:
        try:
            gone = job.expire(now)
        except Exception:
            # A failure in one job must not keep the leases of the others alive.
            _log.exception("the leases of job %s cannot be checked", job.name)
            return
        for worker in gone:
            self.num_leases_lost += 1
            self._dismiss(job, worker)
        if gone or job.session is not None:
            self._pending.release(job)

    def stop(self) -> None:
        """Fail all waiting calls; their workers continue with the last plan."""
        self._pending.fail_all()

    def _hello(self, peer: ClientConnection, arguments: Any, message: wire.Message) -> bytes:
        only_job = admitted_job(arguments.token or "", self._token)
        greeting = self._replies.greeting(arguments)
        peer.greeted, peer.only_job = True, only_job
        return self._replies.encode(message, greeting)

    def _create(
        self, peer: ClientConnection, arguments: Any, message: wire.Message
    ) -> bytes | None:
        _check_token(peer, arguments.job, arguments.reuse)
        return self._with_job(peer, message, arguments, lambda _: self._replies.encode(message))

    def _join(self, peer: ClientConnection, arguments: Any, message: wire.Message) -> bytes | None:
        entry = required(arguments.entry, "entry")
        _check_token(peer, entry.job, entry.reuse)
        worker = check_name("worker", entry.worker)
        iteration = require_count(f"iteration of worker {worker}", entry.iteration)
        lease = check_seconds(f"lease of worker {worker}", entry.lease)
        if peer.job is not None and (peer.job.name, peer.worker) != (entry.job, worker):
            raise OutOfTurn(
                f"this connection is that of worker {peer.worker} of job {peer.job.name}, "
                f"got {worker} of job {entry.job}"
            )
        self._forget(peer)
        peer.job = None

        def enter(job: Job) -> bytes | None:
            if peer.gone:
                return None
            first = job.join(worker, iteration, lease, self._clock(), str(entry.instance or ""))
            # An old connection of the same worker is dead, and the manager has not noticed.
            self._dismiss(job, worker)
            peer.job, peer.worker = job, worker
            self._peers[job, worker] = peer
            self._pending.release(job)
            return self._replies.encode(message, from_membership(job, first))

        if entry.settings is None:
            return enter(self.jobs.find(entry.job))
        return self._with_job(peer, message, entry, enter)

    def _with_job(
        self,
        peer: ClientConnection,
        message: wire.Message,
        wanted: Any,
        use: Callable[[Job], bytes | None],
    ) -> bytes | None:
        """Use a job now, or make it first, off this thread; the connection is busy until then."""
        settings = to_settings(wanted.settings)
        if (job := self.jobs.get(wanted.job, settings)) is not None:
            return use(job)
        if self._num_making >= MOST_MAKING:
            raise LimitReached(f"at most {MOST_MAKING} jobs can be made at a time: try again")
        prepare = self.jobs.preparation(settings, wanted.reuse)

        def made(learned: LearnedState | Exception | None) -> None:
            self._num_making -= 1
            peer.busy = False

            def add() -> bytes | None:
                if isinstance(learned, Exception):
                    raise learned
                job = self.jobs.get(wanted.job, settings)
                return use(job or self.jobs.add(wanted.job, settings, learned, wanted.reuse))

            self._try(peer, message, add)

        self._num_making += 1
        peer.busy = True
        self.jobs.background(prepare, made)
        return None

    def _report(self, peer: ClientConnection, arguments: Any, message: wire.Message) -> None:
        job = _job(peer)
        report = to_report(peer.worker, arguments.report)
        held = arguments.report.plan
        if held is not None:
            held = require_count(f"plan of worker {peer.worker}", held)
        wait = check_seconds("wait", arguments.wait, LONGEST_WAIT)
        job.report(report, held, self._clock())
        k = report.iteration

        def give_up() -> EvenstepError:
            missing = () if job.session is None else job.session.waiting_for
            who = ", ".join(missing[:5]) or f"{job.settings.workers - len(job.workers)} to join"
            return Unplanned(
                f"the plan of iteration {k} must come within {wait:g} s, "
                f"but nothing was heard from {who}"
            )

        self._wait(peer, message, wait, lambda: self._plan_body(message, job, k), give_up)

    def _agree(self, peer: ClientConnection, arguments: Any, message: wire.Message) -> None:
        job = _job(peer)
        k = require_count(f"iteration of worker {peer.worker}", arguments.iteration)
        number = require_count(f"number of worker {peer.worker}", arguments.number)
        wait = check_seconds("wait", arguments.wait, LONGEST_WAIT)
        job.agree(peer.worker, k, number, self._clock())

        def ready() -> bytes | None:
            outcome = job.agreements.outcome(k)
            if outcome is None:
                return None
            if outcome.number is None:
                raise Unplanned(f"the workers could not agree on the plan of iteration {k}")
            return self._replies.encode(message, outcome.number)

        def give_up() -> EvenstepError:
            job.agreements.fail(k)
            return Unplanned(f"the workers did not agree on iteration {k} within {wait:g} s")

        self._wait(peer, message, wait, ready, give_up)

    def _renew(self, peer: ClientConnection, arguments: Any, message: wire.Message) -> bytes:
        _job(peer).renew(peer.worker, self._clock())
        return self._replies.encode(message)

    def _leave(self, peer: ClientConnection, arguments: Any, message: wire.Message) -> bytes:
        job = _job(peer)
        job.leave(peer.worker)
        self._peers.pop((job, peer.worker), None)
        peer.job = None
        self._pending.release(job)
        return self._replies.encode(message)

    def _status(self, peer: ClientConnection, arguments: Any, message: wire.Message) -> bytes:
        _check_token(peer, arguments.job)
        if arguments.job:
            jobs = [self.jobs.find(arguments.job)]
        else:
            jobs = [job for job in self.jobs if peer.only_job in (None, job.name)]
        return self._replies.encode(message, [from_job(job) for job in jobs])

    def _wait(
        self,
        peer: ClientConnection,
        message: wire.Message,
        wait: float,
        ready: Callable[[], bytes | None],
        give_up: Callable[[], EvenstepError],
    ) -> None:
        """Answer a call now or when its job changes; its connection is busy until then."""

        def answer(result: bytes | EvenstepError) -> None:
            peer.busy = False
            if isinstance(result, EvenstepError):
                self._replies.refuse(peer, message, result)
            else:
                self._answer(peer, message, result)

        peer.busy = True
        job = _job(peer)
        deadline = self._clock() + wait
        self._pending.add(job, PendingCall(peer.worker, deadline, ready, answer, give_up))
        # The call that completes a boundary also answers the waiting ones.
        self._pending.release(job)

    def _answer(self, peer: ClientConnection, message: wire.Message, body: bytes) -> None:
        peer.refused = 0
        self._replies.send(peer, message, body)

    def _plan_body(self, message: wire.Message, job: Job, iteration: int) -> bytes | None:
        """Return the reply with a plan, encoded once for all workers of the job."""
        plan = job.plan_for(iteration)
        if plan is None:
            return None
        key, body = self._bodies.get(job, ((-1, -1), b""))
        if key != (plan.number, plan.iteration):
            assert job.session is not None
            struct = from_plan(plan, job.session.workers_of(plan))
            body = self._replies.encode(message, struct)
            self._bodies[job] = (plan.number, plan.iteration), body
        return body

    def _dismiss(self, job: Job, worker: str) -> None:
        """Close the connection of a worker that is no longer a member."""
        peer = self._peers.pop((job, worker), None)
        if peer is not None:
            self._pending.remove(job, worker)
            peer.job, peer.busy = None, False
            peer.close()


def _check_token(peer: ClientConnection, *jobs: str | None) -> None:
    """Raise Refused if a client with the token of one job names another."""
    for job in jobs:
        if job and peer.only_job not in (None, job):
            raise Refused("TOKEN", f"the token is for job {peer.only_job} alone, got job {job}")


def _job(peer: ClientConnection) -> Job:
    if peer.job is None:
        raise MembershipError("this connection is that of no worker: join first")
    return peer.job
