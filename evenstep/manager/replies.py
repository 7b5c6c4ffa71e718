"""Replies to the calls of a Thrift service: with a result, or with the reason why not."""

from __future__ import annotations

from collections import Counter
from typing import Any

from thriftpy2.thrift import TMessageType

from evenstep.errors import EvenstepError, Refused
from evenstep.manager import wire
from evenstep.manager.client_connection import ClientConnection
from evenstep.manager.connection import Callee

_LONGEST = 1000
"""Characters of a reason."""


class Replies:
    """What one service sends back, and how often it refused."""

    def __init__(self, service: Callee) -> None:
        self.refused: Counter[str] = Counter()
        """Calls that were refused, by the name of what was wrong."""
        self._callee = service

    def arguments(self, message: wire.Message) -> Any:
        """Return the arguments of a call."""
        return wire.decode_body(self._struct(message, "args")(), message.body)

    def reply(self, peer: ClientConnection, message: wire.Message, success: Any = None) -> None:
        """Send the result of a call."""
        result = self._struct(message, "result")()
        if success is not None:
            result.success = success
        _send(peer, message, result)

    def refuse(self, peer: ClientConnection, message: wire.Message, error: EvenstepError) -> None:
        """Send why a call was not answered."""
        types = self._callee.types()
        problem = error.problem if isinstance(error, Refused) else "INVALID"
        number = types.Problem._NAMES_TO_VALUES[problem]
        refused = types.Refused(problem=number, message=str(error)[:_LONGEST])
        _send(peer, message, self._struct(message, "result")(refused=refused))
        peer.count_refusal(problem, self.refused)

    def check_version(self, version: object) -> None:
        """Raise Refused where a greeting is in another version."""
        if version != self._callee.version:
            text = f"this {self._callee.name} speaks version {self._callee.version}, got {version}"
            raise Refused("VERSION", text)

    def _struct(self, message: wire.Message, part: str) -> Any:
        service = getattr(self._callee.types(), self._callee.service)
        return getattr(service, f"{message.name}_{part}")


def _send(peer: ClientConnection, message: wire.Message, result: Any) -> None:
    body = wire.encode_body(result)
    peer.send(wire.encode_frame(message.name, TMessageType.REPLY, message.sequence, body))
