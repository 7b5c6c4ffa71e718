"""The HTTP port of a manager: reads requests and sends answers, on the manager's thread.

One request per connection, GET or HEAD. The request must arrive, and the client must read its
answer, within `PATIENCE`, or the connection is closed. The event stream is an answer without end.

A new connection always gets a place: if all are taken, another connection is cut, first one that
has its answer, then one whose request (or TLS handshake) is unfinished, oldest first. So nobody
keeps a liveness probe out by holding connections. Connections are counted as they are accepted,
before the handshake; asyncio's own servers would show them only after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import h11

from evenstep.manager.listening import listening, open_transport
from evenstep.manager.log_format import Seldom

MAX_CONNECTIONS = 32
"""Connections at once, streams excluded: their pages have limits of their own."""
MAX_HEAD = 8 * 1024
"""Bytes of a request, which has no body."""
PATIENCE = 10.0
_LINGER = 1.0
_FEW, _BREATH = 8, 0.004
"""Connections that are accepted without a pause, and the pause in seconds after further ones."""

_log = logging.getLogger(__name__)
_cut = Seldom(_log)


@dataclass(frozen=True)
class Request:
    """A request of a client."""

    method: str
    target: str
    headers: dict[str, str]
    """By their names in lower case."""


@dataclass(frozen=True, eq=False)
class HttpAnswer:
    """An answer: a text, or a stream of texts."""

    status: int
    text: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    stream: AsyncGenerator[bytes, None] | None = None
    release: Callable[[], None] = lambda: None
    """Called once when the answer is over, whether it was sent, in part, or not at all."""


def plain(status: int, text: str, *headers: tuple[str, str]) -> HttpAnswer:
    """Return an answer that is one line of text."""
    return HttpAnswer(status, f"{text}\n".encode(), headers=headers)


class _Stage(enum.IntEnum):
    """What a connection waits for; lower ones are cut first when a new one needs a place."""

    CLOSING = 0
    """The client has its answer."""
    ARRIVING = 1
    """The request, or the TLS handshake before it, is unfinished."""
    ANSWERING = 2


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    stage: _Stage = _Stage.ARRIVING
    task: asyncio.Task[None] = field(init=False)


class HttpPort:
    """Listens, and answers each request with the result of `respond`."""

    def __init__(self, respond: Callable[[Request], Awaitable[HttpAnswer]]) -> None:
        self._respond = respond
        self._open: set[_Connection] = set()
        self._places: dict[_Connection, None] = {}
        """The open connections without those that follow a stream, oldest first."""

    @property
    def num_connections(self) -> int:
        return len(self._open)

    @contextlib.asynccontextmanager
    async def listening(
        self, host: str, port: int, context: ssl.SSLContext | None
    ) -> AsyncIterator[list[str]]:
        """Listen while the block runs; yields the URLs."""
        async with listening(host, port, lambda client: self._admit(client, context)) as sockets:
            names = [one.getsockname() for one in sockets]
            try:
                yield [url(name[0], name[1], context is not None) for name in names]
            finally:
                tasks = [one.task for one in self._open]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _admit(self, client: socket.socket, context: ssl.SSLContext | None) -> None:
        """Give a connection a place, if necessary that of another one."""
        if len(self._places) >= MAX_CONNECTIONS:
            other = min(self._places, key=lambda one: one.stage)
            del self._places[other]
            other.task.cancel()
            _cut.warning(
                "the HTTP port has %d connections: cut the oldest, %s",
                MAX_CONNECTIONS,
                other.stage.name.lower(),
            )
        connection = _Connection(client)
        self._open.add(connection)
        self._places[connection] = None
        connection.task = asyncio.create_task(self._serve(connection, context))
        connection.task.add_done_callback(lambda _: self._forget(connection))
        if len(self._places) > _FEW:
            # Many at once come one after the other, so that rounds get their turn between them.
            await asyncio.sleep(_BREATH)

    def _forget(self, connection: _Connection) -> None:
        self._open.discard(connection)
        self._places.pop(connection, None)
        connection.socket.close()
        # Its error has a traceback, which leads back here and to the memory of the connection.
        del connection.task

    async def _serve(self, connection: _Connection, context: ssl.SSLContext | None) -> None:
        # The client is gone or too slow, or was cut, or the manager stops: nobody would read an
        # error.
        with contextlib.suppress(OSError, TimeoutError, asyncio.TimeoutError):
            reader, writer = await _open_streams(connection.socket, context)
            try:
                await self._handle(connection, reader, writer)
            finally:
                writer.transport.abort()

    async def _handle(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        # `drain` must wait until the client has received everything; with 0, it never ends for TLS.
        writer.transport.set_write_buffer_limits(high=1, low=0)
        is_head = False
        try:
            request = await asyncio.wait_for(_receive(protocol, reader), PATIENCE)
        except h11.RemoteProtocolError as error:
            answer = plain(error.error_status_hint, HTTPStatus(error.error_status_hint).phrase)
        else:
            if request is None:
                return
            connection.stage = _Stage.ANSWERING
            is_head = request.method == "HEAD"
            answer = await self._answer(request)
        try:
            sending = _send(protocol, writer, answer, is_head)
            if answer.stream is not None and not is_head:
                self._places.pop(connection, None)
                await _send_while_connected(reader, sending)
                return
            await sending
        finally:
            answer.release()
        connection.stage = _Stage.CLOSING
        await _close(reader, writer)

    async def _answer(self, request: Request) -> HttpAnswer:
        try:
            return await self._respond(request)
        except Exception:
            _log.exception("an answer to %s failed", request.target[:100])
            return plain(500, "the manager failed; its log says why")


async def _open_streams(
    client: socket.socket, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the streams of an accepted connection, after its TLS handshake if there is one."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_HEAD)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await open_transport(lambda: protocol, client, context)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)  # type: ignore[arg-type]


async def _receive(connection: h11.Connection, reader: asyncio.StreamReader) -> Request | None:
    """Return the request, or None if none comes."""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in event.headers}
            return Request(event.method.decode(), event.target.decode("latin-1"), headers)
        if event is not h11.NEED_DATA:
            return None
        connection.receive_data(await reader.read(MAX_HEAD))


async def _send(
    connection: h11.Connection, writer: asyncio.StreamWriter, answer: HttpAnswer, is_head: bool
) -> None:
    async def send(event: h11.Event) -> None:
        writer.write(connection.send(event) or b"")
        await asyncio.wait_for(writer.drain(), PATIENCE)

    headers = [
        ("Content-Type", answer.content_type),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Connection", "close"),
        *answer.headers,
    ]
    if answer.stream is None:
        headers.append(("Content-Length", str(len(answer.text))))
    phrase = HTTPStatus(answer.status).phrase
    await send(h11.Response(status_code=answer.status, headers=headers, reason=phrase.encode()))
    if is_head:
        pass
    elif answer.stream is None:
        await send(h11.Data(data=answer.text))
    else:
        async with contextlib.aclosing(answer.stream) as texts:
            async for text in texts:
                await send(h11.Data(data=text))
    await send(h11.EndOfMessage())


async def _send_while_connected(
    reader: asyncio.StreamReader, sending: Coroutine[Any, Any, None]
) -> None:
    """Send a stream until it ends or the client closes the connection, whichever is first."""

    async def gone() -> None:
        while await reader.read(MAX_HEAD):
            pass

    tasks = [asyncio.ensure_future(sending), asyncio.ensure_future(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close a connection so that the answer arrives, even if the client sent more than was read."""
    if writer.can_write_eof():
        writer.write_eof()
        with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
            await asyncio.wait_for(reader.read(MAX_HEAD), _LINGER)
    writer.close()
    await asyncio.wait_for(writer.wait_closed(), PATIENCE)


def url(host: str, port: int, has_tls: bool) -> str:
    """Return the URL of an address.

    >>> url("::1", 7412, has_tls=False)
    'http://[::1]:7412'
    """
    name = f"[{host}]" if ":" in host else host
    return f"http{'s' if has_tls else ''}://{name}:{port}"
