"""The HTTP port of a manager: reads requests and sends answers, on the manager's thread.

One request per connection, GET or HEAD. The request must arrive, and the client must read its
answer, within `PATIENCE`, or the connection is closed. The event stream is an answer without end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11

MAX_CONNECTIONS = 128
MAX_HEAD = 8 * 1024
"""Bytes of a request, which has no body."""
PATIENCE = 10.0
_LINGER = 1.0

_log = logging.getLogger(__name__)


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


def plain(status: int, text: str, *headers: tuple[str, str]) -> HttpAnswer:
    """Return an answer that is one line of text."""
    return HttpAnswer(status, f"{text}\n".encode(), headers=headers)


class HttpPort:
    """Listens, and answers each request with the result of `respond`."""

    def __init__(self, respond: Callable[[Request], Awaitable[HttpAnswer]]) -> None:
        self._respond = respond
        self._open: set[asyncio.Task[None]] = set()

    @property
    def num_connections(self) -> int:
        return len(self._open)

    @contextlib.asynccontextmanager
    async def listening(
        self, host: str, port: int, context: ssl.SSLContext | None
    ) -> AsyncIterator[list[str]]:
        """Listen while the block runs; yields the URLs."""
        server = await asyncio.start_server(
            self._accept,
            host,
            port,
            limit=MAX_HEAD,
            ssl=context,
            ssl_handshake_timeout=PATIENCE if context else None,
        )
        try:
            names = [one.getsockname() for one in server.sockets]
            yield [url(name[0], name[1], context is not None) for name in names]
        finally:
            server.close()
            for task in list(self._open):
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._open.add(task)
        try:
            await self._handle(reader, writer)
        except (OSError, TimeoutError, asyncio.TimeoutError, asyncio.CancelledError):
            # The client is gone or too slow, or the manager stops: nobody would read an error.
            pass
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        # `drain` must wait until the client has received everything; with 0, it never ends for TLS.
        writer.transport.set_write_buffer_limits(high=1, low=0)
        is_head = False
        try:
            request = await asyncio.wait_for(_receive(connection, reader), PATIENCE)
        except h11.RemoteProtocolError as error:
            answer = plain(error.error_status_hint, HTTPStatus(error.error_status_hint).phrase)
        else:
            if request is None:
                return
            is_head = request.method == "HEAD"
            answer = await self._answer(request)
        sending = _send(connection, writer, answer, is_head)
        if answer.stream is None or is_head:
            await sending
            await _close(reader, writer)
        else:
            await _send_while_connected(reader, sending)

    async def _answer(self, request: Request) -> HttpAnswer:
        try:
            return await self._respond(request)
        except Exception:
            _log.exception("an answer to %s failed", request.target[:100])
            return plain(500, "the manager failed; its log says why")


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
