"""Senders: they send an agent's messages to other agents, with a thread and a connection for each.

A message that waits already is not queued again, and a full queue drops messages: they may be lost,
as both parties repeat them. The next message is sent when the other agent has answered, that is,
when its part is on disk; so a slow receiver slows its givers down, and no other agent.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from evenstep.errors import EvenstepError, ManagerUnreachable, Refused
from evenstep.manager.connection import ServiceConnection, Where
from evenstep.partitions.agents.process_limits import Bandwidth
from evenstep.partitions.agents.thrift_messages import AGENT, seal_pieces, to_struct
from evenstep.partitions.handover.protocol import Chunk, Envelope, Wanted

MAX_QUEUED = 64
"""Messages that wait for one agent."""
TIMEOUT = 60.0
"""Seconds after which a message without an answer is sent again: longer than any is held back."""

_PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before the next attempt, after one, two and more that failed."""

_log = logging.getLogger(__name__)

Key = tuple[object, ...]


class Sender:
    """Sends messages to one agent."""

    def __init__(self, name: str, where: Callable[[str], Where | None], out: Bandwidth) -> None:
        self._name, self._where, self._out = name, where, out
        self._queue: OrderedDict[Key, Envelope] = OrderedDict()
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._line: ServiceConnection | None = None
        self.sent = 0
        """Bytes of rows that were sent."""
        self._thread = threading.Thread(target=self._run, name=f"to-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, envelope: Envelope) -> None:
        """Queue a message, unless it waits already or too many do."""
        with self._changed:
            if len(self._queue) < MAX_QUEUED:
                self._queue.setdefault(_key(envelope), envelope)
                self._changed.notify()

    def is_busy(self, hand_over: str) -> bool:
        """Whether messages of a hand-over wait."""
        with self._changed:
            return any(e.message.hand_over == hand_over for e in self._queue.values())

    def chunks(self, hand_over: str) -> frozenset[int]:
        """Return the numbers of the chunks of a hand-over that wait."""
        with self._changed:
            waiting = [envelope.message for envelope in self._queue.values()]
        chunks = (one for one in waiting if isinstance(one, Chunk))
        return frozenset(one.number for one in chunks if one.hand_over == hand_over)

    def stop(self) -> None:
        """Stop at once; waiting messages are not sent."""
        self._stopped.set()
        with self._changed:
            self._changed.notify()
        self._hang_up()
        self._thread.join()

    def _run(self) -> None:
        failures = 0
        while (entry := self._next()) is not None:
            key, envelope = entry
            try:
                self._send(envelope)
                failures = 0
            except ManagerUnreachable as error:
                failures += 1
                if failures == 1 and not self._stopped.is_set():
                    _log.warning("%s cannot be sent %s: %s", self._name, key[0], error)
            except Refused as error:
                failures = failures + 1 if error.problem == "DAMAGED" else 0
                _log.warning("%s does not take %s: %s", self._name, key[0], error)
            except EvenstepError as error:
                failures = 0
                _log.warning("%s cannot be sent %s: %s", self._name, key[0], error)
            if not failures:
                with self._changed:
                    self._queue.pop(key, None)
            else:
                self._stopped.wait(_PAUSES[min(failures, len(_PAUSES)) - 1])
        self._hang_up()

    def _next(self) -> tuple[Key, Envelope] | None:
        """Return the oldest message, which stays in the queue until it is delivered."""
        with self._changed:
            while not self._stopped.is_set():
                if self._queue:
                    return next(iter(self._queue.items()))
                self._changed.wait()
        return None

    def _send(self, envelope: Envelope) -> None:
        if isinstance(envelope.message, Chunk):
            size = len(envelope.message.payload)
            if self._stopped.wait(self._out.reserve(size, time.monotonic())):
                return
            self.sent += size
        try:
            self._connected().call_with("deliver", TIMEOUT, seal_pieces(to_struct(envelope)))
        except ManagerUnreachable:
            self._hang_up()
            raise

    def _connected(self) -> ServiceConnection:
        if self._line is None:
            where = self._where(self._name)
            if where is None:
                raise ManagerUnreachable(
                    f"the address of the agent of {self._name} must be known, got none"
                )
            self._line = ServiceConnection(where, TIMEOUT / 6, AGENT)
        return self._line

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            with contextlib.suppress(OSError):
                line.close()


class Senders:
    """All senders of an agent, and the addresses of the other agents."""

    def __init__(self, wheres: Callable[[str], Where], out: Bandwidth) -> None:
        self._wheres, self._out = wheres, out
        self._addresses: dict[str, str] = {}
        self._senders: dict[str, Sender] = {}

    def introduce(self, addresses: Mapping[str, str]) -> None:
        """Store the addresses of agents, by partition."""
        self._addresses |= addresses

    def send(self, envelope: Envelope) -> None:
        """Queue a message for its receiver; without an address it is dropped."""
        if envelope.to not in self._addresses:
            return
        if envelope.to not in self._senders:
            self._senders[envelope.to] = Sender(envelope.to, self._where, self._out)
            self._senders[envelope.to].start()
        self._senders[envelope.to].put(envelope)

    def is_busy(self, hand_over: str) -> bool:
        """Whether messages of a hand-over wait to be sent."""
        return any(sender.is_busy(hand_over) for sender in self._senders.values())

    def chunks(self, hand_over: str) -> frozenset[int]:
        """Return the numbers of the chunks of a hand-over that wait to be sent."""
        return frozenset[int]().union(*(one.chunks(hand_over) for one in self._senders.values()))

    @property
    def sent(self) -> int:
        """Bytes of rows that were sent to all."""
        return sum(sender.sent for sender in self._senders.values())

    def stop(self) -> None:
        for sender in self._senders.values():
            sender.stop()

    def _where(self, name: str) -> Where | None:
        address = self._addresses.get(name)
        return None if address is None else self._wheres(address)


def _key(envelope: Envelope) -> Key:
    """Return the key of a message: two with the same key have the same effect."""
    message = envelope.message
    if isinstance(message, Chunk):
        return type(message).__name__, message.hand_over, message.number
    if isinstance(message, Wanted):
        return type(message).__name__, message.hand_over, message.numbers
    return type(message).__name__, message.hand_over
