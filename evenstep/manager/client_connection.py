"""Connections from clients, and the replies of a Thrift service to the calls on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from thriftpy2.thrift import TApplicationException, TMessageType

from evenstep.errors import (
    EvenstepError,
    InfeasibleLimits,
    LimitReached,
    MembershipError,
    NameTaken,
    OutOfTurn,
    Refused,
    UnknownJob,
    Unplanned,
)
from evenstep.manager import wire
from evenstep.manager.connection import SOFTWARE, Callee, describe_speaker
from evenstep.manager.job import Job

MAX_REFUSED = 100
"""Refused calls in a row after which a connection is closed."""
_LONGEST_REASON = 1000
"""Characters of the message of a refusal."""

_PROBLEMS: list[tuple[type[EvenstepError], str]] = [
    (NameTaken, "NAME_TAKEN"),
    (MembershipError, "MEMBERSHIP"),
    (UnknownJob, "UNKNOWN_JOB"),
    (OutOfTurn, "OUT_OF_TURN"),
    (InfeasibleLimits, "INFEASIBLE"),
    (Unplanned, "UNPLANNED"),
    (LimitReached, "LIMIT"),
    (EvenstepError, "INVALID"),
]


@dataclass(eq=False)
class ClientConnection:
    """The connection of one client, as a service sees it."""

    send: Callable[[bytes], None]
    close: Callable[[], None]
    greeted: bool = False
    only_job: str | None = None
    """The job whose token the client has; None with the manager's token, which is for all jobs."""
    job: Job | None = None
    worker: str = ""
    refused: int = 0
    """Refused calls since the last one that succeeded."""
    busy: bool = False
    """Whether a call on it waits for its reply."""
    gone: bool = False
    """Whether it was closed."""

    def count_refusal(self, problem: str, refused: Counter[str]) -> None:
        """Count a refused call; close the connection after `MAX_REFUSED` of them in a row."""
        refused[problem] += 1
        self.refused += 1
        if self.refused >= MAX_REFUSED:
            self.close()


class Replies:
    """Sends the replies of one service, and counts the calls that it refused."""

    def __init__(self, service: Callee) -> None:
        self.refused: Counter[str] = Counter()
        """Refused calls by the name of their problem."""
        self._callee = service

    def arguments(self, message: wire.Message) -> Any:
        """Return the arguments of a call."""
        return wire.decode_body(self._struct(message, "args")(), message.body)

    def encode(self, message: wire.Message, success: Any = None) -> bytes:
        """Return the result of a call as bytes."""
        result = self._struct(message, "result")()
        if success is not None:
            result.success = success
        return wire.encode_body(result)

    def send(self, peer: ClientConnection, message: wire.Message, body: bytes) -> None:
        """Send a result that `encode` returned."""
        peer.send(wire.encode_frame(message.name, TMessageType.REPLY, message.sequence, body))

    def reply(self, peer: ClientConnection, message: wire.Message, success: Any = None) -> None:
        """Send the result of a call."""
        self.send(peer, message, self.encode(message, success))

    def refuse(self, peer: ClientConnection, message: wire.Message, error: EvenstepError) -> None:
        """Send the reason why a call failed, under its name in the service's Thrift file."""
        types, problem = self._callee.types(), problem_of(error)
        numbers = types.Problem._NAMES_TO_VALUES
        if problem not in numbers:
            problem = "INVALID"
        refused = types.Refused(problem=numbers[problem], message=str(error)[:_LONGEST_REASON])
        result = self._struct(message, "result")(refused=refused)
        self.send(peer, message, wire.encode_body(result))
        # A late plan is no mistake of the client.
        if problem != "UNPLANNED":
            peer.count_refusal(problem, self.refused)

    def refuse_unknown(
        self, peer: ClientConnection, message: wire.Message, calls: Iterable[str]
    ) -> None:
        """Reply to a call that the service does not have."""
        text = f"a call must be one of {', '.join(calls)}, got {message.name[:40]!r}"
        peer.send(wire.encode_failure(message, TApplicationException.UNKNOWN_METHOD, text))
        peer.count_refusal("UNKNOWN_CALL", self.refused)

    def fail(self, peer: ClientConnection, message: wire.Message) -> None:
        """Reply to a call that failed because of a mistake in the service."""
        text = f"the {self._callee.name} failed; its log says why"
        peer.send(wire.encode_failure(message, TApplicationException.INTERNAL_ERROR, text))
        peer.count_refusal("FAILED", self.refused)

    def greeting(self, hello: Any) -> Any:
        """Return the reply to `hello`, with the newest version that both sides know.

        Raises Refused if there is none.
        """
        own, oldest = self._callee, hello.version
        # A client from before ranges knows one version.
        newest = hello.newest or oldest
        if oldest is None or min(newest, own.newest) < max(oldest, own.oldest):
            this = describe_speaker(SOFTWARE, own.oldest, own.newest)
            client = describe_speaker(hello.software, oldest, newest)
            raise Refused("VERSION", f"this {own.name} is {this}, got a client that is {client}")
        return own.types().Greeting(version=min(newest, own.newest), software=SOFTWARE)

    def _struct(self, message: wire.Message, part: str) -> Any:
        service = getattr(self._callee.types(), self._callee.service)
        return getattr(service, f"{message.name}_{part}")


def problem_of(error: EvenstepError) -> str:
    """Return the name in `manager.thrift` of the problem that an error describes."""
    if isinstance(error, Refused):
        return error.problem
    return next(name for kind, name in _PROBLEMS if isinstance(error, kind))
