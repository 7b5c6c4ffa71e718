"""The Thrift service of an agent: answers the calls of `agent.thrift`, without sockets and disk.

Connections live on one thread and the partition on another, so that a slow disk delays no greeting.
"""

from __future__ import annotations

import logging
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from thriftpy2.thrift import TApplicationException, TMessageType

from evenstep.errors import EvenstepError, Refused
from evenstep.manager import wire
from evenstep.manager.access import is_token
from evenstep.manager.buffers import Octets
from evenstep.manager.client_connection import ClientConnection, Replies
from evenstep.partitions.agents.agent_calls import AgentCalls
from evenstep.partitions.agents.process_limits import Bandwidth
from evenstep.partitions.agents.thrift_messages import (
    AGENT,
    MAX_FRAME,
    from_struct,
    seal,
    types,
    unseal,
)
from evenstep.partitions.handover.protocol import Chunk

LONGEST_DELAY = 20.0
"""The longest delay of an answer in seconds, however little bandwidth there is."""

_log = logging.getLogger(__name__)

Answer = tuple[Any, float]
"""The result of a call, and the seconds by which it is delayed."""


def largest_frame(peer: ClientConnection) -> int:
    """Return how many bytes a frame may have: few before a greeting."""
    return MAX_FRAME if peer.greeted else wire.MAX_REQUEST


class AgentService:
    """Answers calls, message by message."""

    def __init__(
        self,
        agent_calls: AgentCalls,
        token: str | None,
        incoming: Bandwidth,
        loop: AbstractEventLoop,
        partition_thread: Executor,
    ) -> None:
        self._replies = Replies(AGENT)
        self.refused = self._replies.refused
        self._agent_calls, self._token, self._incoming = agent_calls, token, incoming
        self._loop, self._partition_thread = loop, partition_thread
        self._calls: dict[str, Callable[[Any], Answer]] = {
            "introduce": self._introduce,
            "deliver": self._deliver,
            "collect": lambda arguments: (seal(agent_calls.collect()), 0.0),
            "describe": lambda arguments: (seal(agent_calls.describe()), 0.0),
            "begun": lambda arguments: (seal(agent_calls.begun(arguments.hand_over)), 0.0),
            "samples": self._samples,
            "compact": lambda arguments: (agent_calls.compact(), 0.0),
        }

    def handle(self, peer: ClientConnection, content: Octets) -> None:
        """Answer one message, now or when the partition's thread is done with it."""
        message = wire.parse_message(content)
        call = self._calls.get(message.name)
        if message.kind != TMessageType.CALL or (call is None and message.name != "hello"):
            names = ", ".join(("hello", *self._calls))
            text = f"a call must be one of {names}, got {message.name[:40]!r}"
            peer.send(wire.encode_failure(message, TApplicationException.UNKNOWN_METHOD, text))
            peer.count_refusal("UNKNOWN_CALL", self.refused)
            return
        arguments = self._replies.arguments(message)
        try:
            if call is None:
                self._replies.reply(peer, message, self._hello(peer, arguments))
            elif not peer.greeted:
                raise Refused("TOKEN", "the first call on a connection must be hello")
            else:
                peer.busy = True
                future = self._partition_thread.submit(call, arguments)
                future.add_done_callback(lambda done: self._hand_back(peer, message, done))
        except EvenstepError as error:
            self._replies.refuse(peer, message, error)

    def lost(self, peer: ClientConnection) -> None:
        """Note that a connection is gone: nothing here depends on it."""

    def _hello(self, peer: ClientConnection, arguments: Any) -> Any:
        if not is_token(arguments.token or "", self._token):
            raise Refused("TOKEN", "the token is not that of this agent")
        greeting = self._replies.greeting(arguments)
        peer.greeted = True
        return greeting

    def _introduce(self, arguments: Any) -> Answer:
        peers = unseal(arguments.peers, types().Peers())
        self._agent_calls.introduce(peers.addresses or {})
        return None, 0.0

    def _deliver(self, arguments: Any) -> Answer:
        envelope = from_struct(unseal(arguments.envelope, types().Envelope()))
        now = time.monotonic()
        self._agent_calls.deliver(envelope, now)
        if not isinstance(envelope.message, Chunk):
            return None, 0.0
        return None, self._incoming.reserve(len(envelope.message.payload), now)

    def _samples(self, arguments: Any) -> Answer:
        first, version = arguments.first, arguments.version
        if first is None or version is None:
            raise Refused("INVALID", f"samples need first and version, got {first} and {version}")
        return seal(self._agent_calls.samples(first, version)), 0.0

    def _hand_back(
        self, peer: ClientConnection, message: wire.Message, done: Future[Answer]
    ) -> None:
        """Pass a result to the thread of the connections; called on the thread of the partition."""
        delay = 0.0 if done.exception() else min(done.result()[1], LONGEST_DELAY)
        self._loop.call_soon_threadsafe(
            self._loop.call_later, delay, self._answer, peer, message, done
        )

    def _answer(self, peer: ClientConnection, message: wire.Message, done: Future[Answer]) -> None:
        peer.busy = False
        error = done.exception()
        if error is None:
            peer.refused = 0
            self._replies.reply(peer, message, done.result()[0])
        elif isinstance(error, EvenstepError):
            self._replies.refuse(peer, message, error)
        else:
            _log.error("%s failed", message.name, exc_info=error)
            text = "the agent failed; its log says why"
            peer.send(wire.encode_failure(message, TApplicationException.INTERNAL_ERROR, text))
