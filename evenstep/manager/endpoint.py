"""The manager's Thrift port: connections, frames and periodic work, all on one thread.

A connection costs a few hundred bytes and no thread, so a silent, slow or half-open one delays no
other. A connection that sends a malformed message gets an error reply and is closed; one that does
not read its replies is closed when too many are waiting.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
from thriftpy2.thrift import TApplicationException

from evenstep.errors import MalformedMessage
from evenstep.manager import wire
from evenstep.manager.access import format_address
from evenstep.manager.buffers import Octets
from evenstep.manager.client_connection import ClientConnection
from evenstep.manager.listening import TURNOVER, Door
from evenstep.manager.service import Service
from evenstep.runlog.manager_stream import HTTP_PORT_HEADER

MAX_CONNECTIONS = 20_000
MAX_UNREAD = 64 * 1024
"""Bytes of unread replies at which a connection is closed instead of sent another."""
SWEEP = 0.1
"""Seconds between two checks of leases and waiting calls."""
SAVE = 1.0
"""Seconds between two saves of changed jobs."""
PATIENCE = 30.0
"""Seconds that a connection without a worker may be silent."""
HELLO = 5.0
"""Seconds that a new connection may be silent."""
_TIDY = 1.0
"""Seconds between two searches for silent connections."""

_HTTP = (b"GET ", b"HEAD")

_log = logging.getLogger(__name__)


class Answers(Protocol):
    """A service that answers the frames of connections: the manager's, or another one."""

    refused: Counter[str]

    def handle(self, peer: ClientConnection, content: Octets) -> None:
        """Answer a frame, now or later; raises MalformedMessage if it is not a message."""

    def lost(self, peer: ClientConnection) -> None:
        """Record that a connection was closed."""


@dataclass(frozen=True)
class Bounds:
    """Limits on the connections of a process; the defaults are those of the manager."""

    frame: Callable[[ClientConnection], int] = lambda peer: wire.MAX_REQUEST
    """Bytes of the largest frame that is read from a connection."""


class Connection(asyncio.BufferedProtocol):
    """Splits received bytes into frames and passes them to the service, one call at a time.

    All connections read into one shared buffer and copy their bytes from it at once; asyncio would
    otherwise allocate a quarter of a megabyte for every message. A frame larger than this buffer
    gets a buffer of its own as soon as its length is known, and is read directly into it.
    """

    def __init__(
        self,
        service: Answers,
        connections: set[Connection],
        memory: memoryview,
        bounds: Bounds = Bounds(),  # noqa: B008
        answer_http: Callable[[], bytes] | None = None,
    ) -> None:
        self._memory = memory
        self._answer_http = answer_http
        """Returns the answer to a client that speaks HTTP; None: the error that it is malformed."""
        self._bounds = bounds
        self.peer = ClientConnection(self._send, self._close)
        self._service = service
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._large: memoryview | None = None
        """The buffer of the frame being read, if that is a large one."""
        self._filled = 0
        """Bytes of it that have arrived."""
        self._heard = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self._service.lost(self.peer)
        # Without its cycles its memory, with TLS a tenth of a megabyte, is free at once.
        self.peer.send, self.peer.close = _ignore, _nothing
        self._transport = _Gone()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._memory if self._large is None else self._large[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._large is None:
            self._buffer += self._memory[:nbytes]
        else:
            self._filled += nbytes
        self._work()
        if len(self._buffer) > 2 * self._bounds.frame(self.peer):
            self._transport.pause_reading()

    @property
    def is_stranger(self) -> bool:
        return not self.peer.greeted

    @property
    def idle_since(self) -> float | None:
        return None if self.peer.job is not None or self.peer.busy else self._heard

    def abort(self) -> None:
        self._transport.abort()

    def _work(self) -> None:
        """Handle a complete frame, unless a call is waiting for its reply."""
        if not (self.peer.busy or self._transport.is_closing()):
            content = self._next_frame()
            if content is not None:
                self._heard = self._loop.time()
                try:
                    if self._buffer:
                        # Calls in advance would be work that nobody else gets a turn between.
                        raise MalformedMessage("a call must wait for the reply to the last one")
                    self._service.handle(self.peer, content)
                except MalformedMessage as error:
                    self._complain(error)
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _next_frame(self) -> Octets | None:
        if (frame := self._large) is not None:
            if self._filled < len(frame):
                return None
            self._large = None
            return frame
        if len(self._buffer) < 4:
            return None
        try:
            end = 4 + wire.frame_length(self._buffer, self._bounds.frame(self.peer))
        except MalformedMessage as error:
            if self._answer_http is not None and self._buffer.startswith(_HTTP):
                self._send(self._answer_http())
                self._close()
            else:
                self._complain(error)
            return None
        if len(self._buffer) < end:
            if end > len(self._memory):
                # Uninitialised, so that a client that only claims a large frame costs no memory.
                self._large, self._filled = np.empty(end - 4, np.uint8).data, len(self._buffer) - 4
                self._large[: self._filled] = self._buffer[4:]
                self._buffer.clear()
            return None
        content = bytes(self._buffer[4:end])
        del self._buffer[:end]
        return content

    def _complain(self, error: MalformedMessage) -> None:
        self._service.refused["MALFORMED"] += 1
        kind = TApplicationException.PROTOCOL_ERROR
        self._send(wire.encode_failure(None, kind, str(error)))
        self._close()

    def _send(self, frame: bytes) -> None:
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MAX_UNREAD:
            self._transport.abort()
            return
        # A single reply may be larger than the limit: the status of many large jobs.
        self._transport.write(frame)
        if self._buffer:
            self._loop.call_soon(self._work)

    def _close(self) -> None:
        # No more frames are read; replies already written are still sent.
        self._buffer.clear()
        self._large = None
        self._transport.close()


def _ignore(frame: bytes) -> None: ...


def _nothing() -> None: ...


class _Gone(asyncio.Transport):
    """The transport of a connection that is closed."""

    def is_closing(self) -> bool:
        return True

    def abort(self) -> None: ...


class Endpoint:
    """Listens, and runs the periodic work of the service, until a signal stops it."""

    def __init__(
        self, service: Service, context: ssl.SSLContext | None = None, places: int = MAX_CONNECTIONS
    ) -> None:
        self._service = service
        self._door: Door[Connection] = Door(places, context)
        self.http_port: int | None = None
        """The port for metrics and events, so that clients need to know one address only."""

    @property
    def num_connections(self) -> int:
        return len(self._door.guests)

    async def run(self, host: str, port: int, ready: Callable[[str], None]) -> None:
        """Serve until SIGTERM or SIGINT; calls `ready` with the addresses."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        memory = memoryview(bytearray(2 * wire.MAX_REQUEST))

        def connection() -> Connection:
            return Connection(
                self._service, self._door.guests, memory, answer_http=self._answer_http
            )

        writer = ThreadPoolExecutor(1, "evenstep-state")
        async with self._door.open(host, port, connection) as sockets:
            tasks = [loop.create_task(self._sweep()), loop.create_task(self._save(writer))]
            ready(" and ".join(format_address(*one.getsockname()[:2]) for one in sockets))
            await stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._end(writer)

    def _answer_http(self) -> bytes:
        port = self.http_port
        text = f"metrics and events are {'off (--http)' if port is None else f'on port {port}'}\n"
        head = ["HTTP/1.1 421 Misdirected Request", f"Content-Length: {len(text)}"]
        if port is not None:
            head.append(f"{HTTP_PORT_HEADER}: {port}")
        return "\r\n".join([*head, "Connection: close", "", text]).encode()

    async def _end(self, writer: ThreadPoolExecutor) -> None:
        """Answer waiting calls, close the connections, and save the jobs."""
        self._service.stop()
        await asyncio.sleep(0)
        for connection in list(self._door.guests):
            connection.peer.close()
        writer.shutdown(wait=True)
        self._service.jobs.write(self._service.jobs.changed())
        self._service.jobs.close()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        tidied = loop.time()
        while True:
            await asyncio.sleep(SWEEP)
            try:
                self._service.sweep()
            except Exception:
                _log.exception("a sweep failed")
            if loop.time() - tidied > _TIDY:
                tidied = loop.time()
                TURNOVER.collect()
                self._door.cut_silent(tidied, HELLO, PATIENCE)

    async def _save(self, writer: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SAVE)
            try:
                if changed := self._service.jobs.changed():
                    await loop.run_in_executor(writer, self._service.jobs.write, changed)
            except Exception:
                _log.exception("saving failed")
