"""The calls of the manager: what `manager.thrift` promises, without sockets. Times are given to it.

Everything here runs on one thread, so that nothing needs a lock; a call that must wait is put aside
and answered when its job changes, so that nobody is held up by anybody of another job.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from thriftpy2.thrift import TApplicationException, TMessageType

from evenstep.errors import EvenstepError, MembershipError, OutOfTurn, Refused, Unplanned
from evenstep.manager import wire
from evenstep.manager.access import is_token
from evenstep.manager.buffers import Octets
from evenstep.manager.client_connection import ClientConnection, problem_of
from evenstep.manager.idl import VERSION, types
from evenstep.manager.job import Job
from evenstep.manager.job_settings import check_name
from evenstep.manager.jobs import Jobs
from evenstep.manager.lease import LONGEST_WAIT, check_seconds
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


class Service:
    """Answers calls, message by message."""

    def __init__(self, jobs: Jobs, clock: Callable[[], float], token: str | None = None) -> None:
        self.jobs = jobs
        self.refused: Counter[str] = Counter()
        """Calls that were refused, by the name of what was wrong."""
        self.num_leases_lost = 0
        self._clock = clock
        self._token = token
        self._waiting = PendingCalls()
        self._peers: dict[tuple[Job, str], ClientConnection] = {}
        self._bodies: dict[Job, tuple[tuple[int, int], bytes]] = {}
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
        """Answer one message; raises MalformedMessage where it is none."""
        message = wire.parse_message(content)
        call = self._calls.get(message.name)
        if call is None or message.kind != TMessageType.CALL:
            text = f"a call must be one of {', '.join(self._calls)}, got {message.name[:40]!r}"
            peer.send(wire.encode_failure(message, TApplicationException.UNKNOWN_METHOD, text))
            peer.count_refusal("UNKNOWN_CALL", self.refused)
            return
        arguments = getattr(types().BatchSizeManager, f"{message.name}_args")()
        wire.decode_body(arguments, message.body)
        try:
            self._check_greeting(peer, message.name)
            body = call(peer, arguments, message)
        except EvenstepError as error:
            self._refuse(peer, message, error)
        except Exception:
            _log.exception("%s failed", message.name)
            text = "the manager failed; its log says why"
            peer.send(wire.encode_failure(message, TApplicationException.INTERNAL_ERROR, text))
        else:
            if body is not None:
                peer.refused = 0
                _reply(peer, message, body)

    def lost(self, peer: ClientConnection) -> None:
        """Note that a connection is gone."""
        if peer.job is not None and self._peers.get((peer.job, peer.worker)) is peer:
            del self._peers[peer.job, peer.worker]
            self._waiting.remove(peer.job, peer.worker)
            peer.job.disconnect(peer.worker)
            self._waiting.release(peer.job)

    def sweep(self) -> None:
        """Do what time brings about: leases end, and waiting calls give up."""
        now = self._clock()
        self._waiting.expire(now)
        for job in self.jobs:
            self._sweep(job, now)

    def _sweep(self, job: Job, now: float) -> None:
        try:
            gone = job.expire(now)
        except Exception:
            # One job in trouble must not stop the time for the others.
            _log.exception("the leases of job %s cannot be looked at", job.name)
            return
        for worker in gone:
            self.num_leases_lost += 1
            self._dismiss(job, worker)
        if gone or job.session is not None:
            self._waiting.release(job)

    def stop(self) -> None:
        """Answer all who wait; they go on with their last plan."""
        self._waiting.fail_all()

    def _check_greeting(self, peer: ClientConnection, name: str) -> None:
        if not peer.greeted and name != "hello":
            raise Refused("TOKEN", "the first call on a connection must be hello")

    def _hello(self, peer: ClientConnection, arguments: Any, message: wire.Message) -> bytes:
        if arguments.version != VERSION:
            text = f"this manager speaks version {VERSION}, got {arguments.version}"
            raise Refused("VERSION", text)
        if not is_token(arguments.token or "", self._token):
            raise Refused("TOKEN", "the token is not that of this manager")
        peer.greeted = True
        return _body(message)

    def _create(self, peer: ClientConnection, arguments: Any, message: wire.Message) -> bytes:
        self.jobs.create(arguments.job, to_settings(arguments.settings), arguments.reuse)
        return _body(message)

    def _join(self, peer: ClientConnection, arguments: Any, message: wire.Message) -> bytes:
        entry = required(arguments.entry, "entry")
        worker = check_name("worker", entry.worker)
        iteration = require_count(f"iteration of worker {worker}", entry.iteration)
        lease = check_seconds(f"lease of worker {worker}", entry.lease)
        if peer.job is not None and (peer.job.name, peer.worker) != (entry.job, worker):
            raise OutOfTurn(
                f"this connection is that of worker {peer.worker} of job {peer.job.name}, "
                f"got {worker} of job {entry.job}"
            )
        self.lost(peer)
        peer.job = None
        job = self._job_of(entry)
        first = job.join(worker, iteration, lease, self._clock(), str(entry.instance or ""))
        # Its own old connection, if there is one, is dead, and the manager has not noticed.
        self._dismiss(job, worker)
        peer.job, peer.worker = job, worker
        self._peers[job, worker] = peer
        self._waiting.release(job)
        return _body(message, from_membership(job, first))

    def _job_of(self, entry: Any) -> Job:
        if entry.settings is None:
            return self.jobs.find(entry.job)
        return self.jobs.create(entry.job, to_settings(entry.settings), entry.reuse)

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

        self._wait(peer, message, wait, lambda: self._plan_body(job, k), give_up)

    def _agree(self, peer: ClientConnection, arguments: Any, message: wire.Message) -> None:
        job = _job(peer)
        k = require_count(f"iteration of worker {peer.worker}", arguments.iteration)
        number = require_count(f"number of worker {peer.worker}", arguments.number)
        wait = check_seconds("wait", arguments.wait, LONGEST_WAIT)
        job.agree(peer.worker, k, number, self._clock())

        def ready() -> bytes | None:
            outcome = job.agreed(k)
            if outcome is None:
                return None
            if outcome.number is None:
                raise Unplanned(f"the workers could not agree on the plan of iteration {k}")
            return _body(message, outcome.number)

        def give_up() -> EvenstepError:
            job.give_up_agreement(k)
            return Unplanned(f"the workers did not agree on iteration {k} within {wait:g} s")

        self._wait(peer, message, wait, ready, give_up)

    def _renew(self, peer: ClientConnection, arguments: Any, message: wire.Message) -> bytes:
        _job(peer).hear(peer.worker, self._clock())
        return _body(message)

    def _leave(self, peer: ClientConnection, arguments: Any, message: wire.Message) -> bytes:
        job = _job(peer)
        job.leave(peer.worker)
        self._peers.pop((job, peer.worker), None)
        peer.job = None
        self._waiting.release(job)
        return _body(message)

    def _status(self, peer: ClientConnection, arguments: Any, message: wire.Message) -> bytes:
        jobs = [self.jobs.find(arguments.job)] if arguments.job else list(self.jobs)
        return _body(message, [from_job(job) for job in jobs])

    def _wait(
        self,
        peer: ClientConnection,
        message: wire.Message,
        wait: float,
        ready: Callable[[], bytes | None],
        give_up: Callable[[], EvenstepError],
    ) -> None:
        """Answer a call now or when its job changes, and meanwhile take no other on the line."""

        def answer(result: bytes | EvenstepError) -> None:
            peer.busy = False
            if isinstance(result, EvenstepError):
                self._refuse(peer, message, result)
            else:
                peer.refused = 0
                _reply(peer, message, result)

        peer.busy = True
        job = _job(peer)
        deadline = self._clock() + wait
        self._waiting.add(job, PendingCall(peer.worker, deadline, ready, answer, give_up))
        # What completes a boundary answers the others too.
        self._waiting.release(job)

    def _plan_body(self, job: Job, iteration: int) -> bytes | None:
        """Return a plan as bytes, which are the same for all workers of the job."""
        plan = job.plan_for(iteration)
        if plan is None:
            return None
        key, body = self._bodies.get(job, ((-1, -1), b""))
        if key != (plan.number, plan.iteration):
            assert job.session is not None
            struct = from_plan(plan, job.session.workers_of(plan))
            body = wire.encode_body(types().BatchSizeManager.report_result(success=struct))
            self._bodies[job] = (plan.number, plan.iteration), body
        return body

    def _dismiss(self, job: Job, worker: str) -> None:
        """Close the connection of a worker that is no longer a member."""
        peer = self._peers.pop((job, worker), None)
        if peer is not None:
            self._waiting.remove(job, worker)
            peer.job = None
            peer.close()

    def _refuse(self, peer: ClientConnection, message: wire.Message, error: EvenstepError) -> None:
        problem = problem_of(error)
        number = types().Problem._NAMES_TO_VALUES[problem]
        refused = types().Refused(problem=number, message=str(error)[:1000])
        result = getattr(types().BatchSizeManager, f"{message.name}_result")(refused=refused)
        _reply(peer, message, wire.encode_body(result))
        if problem != "UNPLANNED":
            peer.count_refusal(problem, self.refused)


def _job(peer: ClientConnection) -> Job:
    if peer.job is None:
        raise MembershipError("this connection is that of no worker: join first")
    return peer.job


def _body(message: wire.Message, success: Any = None) -> bytes:
    result = getattr(types().BatchSizeManager, f"{message.name}_result")()
    if success is not None:
        result.success = success
    return wire.encode_body(result)


def _reply(peer: ClientConnection, message: wire.Message, body: bytes) -> None:
    peer.send(wire.encode_frame(message.name, TMessageType.REPLY, message.sequence, body))
