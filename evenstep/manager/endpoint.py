"""Where the manager listens: connections, frames, and the time that passes. One thread for all.

A connection costs a few hundred bytes and no thread, so a silent, slow or half-open one holds
nobody up. One that sends what is no message gets an answer that says so and is closed; one that
does not read its answers is closed when they pile up.
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
from evenstep.manager.buffers import Octets
from evenstep.manager.client_connection import ClientConnection
from evenstep.manager.service import Service

MAX_CONNECTIONS = 20_000
MAX_UNREAD = 4 * 1024 * 1024
"""Bytes of answers that may wait for a connection to read them before there is another."""
SWEEP = 0.1
"""Seconds between two looks at leases and waiting calls."""
SAVE = 1.0
"""Seconds between two looks at what must be written."""
PATIENCE = 30.0
"""Seconds that a connection may be silent that is not a worker's."""

_log = logging.getLogger(__name__)


class Answers(Protocol):
    """What stands behind connections: the service of the manager, or another one."""

    refused: Counter[str]

    def handle(self, peer: ClientConnection, content: Octets) -> None:
        """Answer a frame, now or later; raises MalformedMessage where it is no message."""

    def lost(self, peer: ClientConnection) -> None:
        """Note that a connection is gone."""


@dataclass(frozen=True)
class Bounds:
    """How much connections may ask of the process; what is not given is as for the manager."""

    frame: Callable[[ClientConnection], int] = lambda peer: wire.MAX_REQUEST
    """Bytes of the largest frame that is read from it."""
    connections: int = MAX_CONNECTIONS


class Connection(asyncio.BufferedProtocol):
    """Cuts what comes into frames and hands them to the service, one call at a time.

    All connections read into one piece of memory, and take out at once what is theirs: asyncio
    would otherwise set aside a quarter of a megabyte for every message. A frame that is larger
    than that gets memory of its own as soon as its length is known, and is read into its place.
    """

    def __init__(
        self,
        service: Answers,
        connections: set[Connection],
        memory: memoryview,
        bounds: Bounds = Bounds(),  # noqa: B008
    ) -> None:
        self._memory = memory
        self._bounds = bounds
        self.peer = ClientConnection(self._send, self._close)
        self._service = service
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._large: memoryview | None = None
        """The frame that is being read, where it is a large one."""
        self._filled = 0
        """Bytes of it that are there."""
        self._heard = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        if len(self._connections) > self._bounds.connections:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self._service.lost(self.peer)

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

    def close_if_silent(self, now: float) -> None:
        """Close a connection that is no worker's, waits for no answer, and is silent for long."""
        if self.peer.job is None and not self.peer.busy and now - self._heard > PATIENCE:
            self._transport.abort()

    def _work(self) -> None:
        """Handle the frames that are complete, until one must wait for its answer."""
        while not (self.peer.busy or self._transport.is_closing()):
            if (content := self._next_frame()) is None:
                break
            self._heard = self._loop.time()
            try:
                self._service.handle(self.peer, content)
            except MalformedMessage as error:
                self._complain(error)
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _next_frame(self) -> Octets | None:
        if self._large is not None:
            return self._next_large(self._large)
        if len(self._buffer) < 4:
            return None
        try:
            end = 4 + wire.frame_length(self._buffer, self._bounds.frame(self.peer))
        except MalformedMessage as error:
            self._complain(error)
            return None
        if len(self._buffer) < end:
            if end > len(self._memory):
                # Not written to before it is read into: memory that is claimed is not yet used.
                self._large, self._filled = np.empty(end - 4, np.uint8).data, len(self._buffer) - 4
                self._large[: self._filled] = self._buffer[4:]
                self._buffer.clear()
            return None
        content = bytes(self._buffer[4:end])
        del self._buffer[:end]
        return content

    def _next_large(self, frame: memoryview) -> memoryview | None:
        if self._filled < len(frame):
            return None
        self._large = None
        return frame

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
        # An answer alone may be larger: the status of many large jobs.
        self._transport.write(frame)
        if self._buffer:
            self._loop.call_soon(self._work)

    def _close(self) -> None:
        # No more frames are read; what was sent still goes out.
        self._buffer.clear()
        self._large = None
        self._transport.close()


class Endpoint:
    """Listens, and lets time pass for the service, until it is told to stop."""

    def __init__(self, service: Service, context: ssl.SSLContext | None = None) -> None:
        self._service = service
        self._context = context
        self._connections: set[Connection] = set()

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    async def run(self, host: str, port: int, ready: Callable[[str], None]) -> None:
        """Serve until SIGTERM or SIGINT; `ready` is told where it listens."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        patience = 10.0 if self._context else None
        memory = memoryview(bytearray(2 * wire.MAX_REQUEST))
        listening = await loop.create_server(
            lambda: Connection(self._service, self._connections, memory),
            host,
            port,
            ssl=self._context,
            ssl_handshake_timeout=patience,
            backlog=4096,
        )
        writer = ThreadPoolExecutor(1, "evenstep-state")
        sweeping = loop.create_task(self._sweep())
        saving = loop.create_task(self._save(writer))
        names = [one.getsockname()[:2] for one in listening.sockets]
        ready(" and ".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in names))
        await stop.wait()
        listening.close()
        for task in (sweeping, saving):
            task.cancel()
        await asyncio.gather(sweeping, saving, return_exceptions=True)
        await self._end(writer)

    async def _end(self, writer: ThreadPoolExecutor) -> None:
        """Answer those who wait, close the connections, and write what there is."""
        self._service.stop()
        await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.peer.close()
        writer.shutdown(wait=True)
        self._service.jobs.write(self._service.jobs.changed())
        self._service.jobs.close()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP)
            try:
                self._service.sweep()
            except Exception:
                _log.exception("a sweep failed")
            for connection in list(self._connections):
                connection.close_if_silent(loop.time())

    async def _save(self, writer: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SAVE)
            try:
                if changed := self._service.jobs.changed():
                    await loop.run_in_executor(writer, self._service.jobs.write, changed)
            except Exception:
                _log.exception("saving failed")
