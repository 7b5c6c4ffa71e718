"""Listening, and who is let in: connections are counted as they are accepted, before TLS.

asyncio's own servers show a connection only after its handshake, accept without a limit, and log an
error for every connection that the limit of open files denies.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import socket
import ssl
import sys
import time
from asyncio import sslproto
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from evenstep.manager.log_format import Seldom

BACKLOG = 256
"""Connections that wait in the kernel; where it is full, a client tries again after a second."""
HANDSHAKE = 5.0
"""Seconds that a TLS handshake may take."""
_FAREWELL = 0.25
STAY = 0.5
"""Seconds that a new connection has to say hello, before another one may get its place."""
MOST_STRANGERS = 64
"""Connections at once that have not said hello: with TLS, each takes a tenth of a megabyte."""
_TLS_BUFFER = 16 * 1024
"""Bytes that are read at once from a connection with TLS; asyncio keeps a buffer of its own for
each, of 256 KiB by default, and messages are small."""
LEAST_RESERVE, LARGEST_RESERVE = 192, 2_000
"""Open files that are kept for the HTTP port, run logs and the state."""
LEAST_PLACES = 16
_MANY, _SHARE = 32, 0.1
"""New connections after which the memory of closed ones is collected, and the largest share of the
time that this may take."""
_FEW, _BREATH = 16, 0.002
"""Strangers who are let in without a pause, and the pause in seconds after further ones."""
_PAUSE = 0.01
_RETRY = 0.1
"""Seconds until the next attempt to accept a connection, when one failed."""

_log = logging.getLogger(__name__)
_failed = Seldom(_log)
_full = Seldom(_log)


def places(wanted: int) -> int:
    """Return how many connections to let in, after raising the limit of open files for them.

    Most systems give a process 1,024 open files unless it asks for more, and some give no more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + LARGEST_RESERVE:
        more = wanted + LARGEST_RESERVE
        soft = more if hard == resource.RLIM_INFINITY else min(more, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, places_within(soft))


def places_within(files: int) -> int:
    """Return how many connections fit into this many open files, with a reserve for the rest.

    >>> places_within(256), places_within(1024), places_within(100_000)
    (64, 768, 98000)
    """
    reserve = max(LEAST_RESERVE, min(files // 4, LARGEST_RESERVE))
    return max(files - reserve, LEAST_PLACES)


@contextlib.asynccontextmanager
async def listening(
    host: str, port: int, admit: Callable[[socket.socket], Awaitable[None]]
) -> AsyncIterator[list[socket.socket]]:
    """Listen on every address of a host while the block runs, and `admit` who connects.

    Accepting waits while `admit` does.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as stack:
        sockets = []
        for family, address in dict.fromkeys((one[0], one[4]) for one in found):
            sockets.append(socket.create_server(address, family=family, backlog=BACKLOG))
            stack.enter_context(sockets[-1]).setblocking(False)
        tasks = [asyncio.create_task(_accept(one, admit)) for one in sockets]
        try:
            yield sockets
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _accept(
    listener: socket.socket, admit: Callable[[socket.socket], Awaitable[None]]
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            client, _ = await loop.sock_accept(listener)
        except OSError as error:
            _failed.warning("cannot accept a connection: %s", error)
            await asyncio.sleep(_RETRY)
            continue
        TURNOVER.add()
        await admit(client)
        # A flood of connections gives way to the other work of this thread after each one.
        await asyncio.sleep(0)


async def open_transport(
    make: Callable[[], asyncio.BaseProtocol], client: socket.socket, context: ssl.SSLContext | None
) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
    """Return the transport of an accepted connection, after its handshake if there is one."""
    options: dict[str, Any] = {}
    if context is not None:
        sslproto.SSLProtocol.max_size = _TLS_BUFFER
        options = {"ssl": context, "ssl_handshake_timeout": HANDSHAKE}
        if sys.version_info >= (3, 11):
            # Whoever does not answer to the end of a connection would keep it for half a minute.
            options["ssl_shutdown_timeout"] = _FAREWELL
    loop = asyncio.get_running_loop()
    return await loop.connect_accepted_socket(make, client, **options)


class Turnover:
    """Frees the memory of closed connections, if there were many new ones.

    A handshake that fails leaves cycles of some tens of kilobytes, and the collector of a manager
    seldom runs by itself.
    """

    def __init__(self) -> None:
        self._num_new = 0
        self._next = time.monotonic()

    def add(self) -> None:
        """Count a connection."""
        self._num_new += 1
        self.collect()

    def collect(self) -> None:
        began = time.monotonic()
        if self._num_new >= _MANY and began >= self._next:
            gc.collect()
            self._num_new = 0
            self._next = began + (time.monotonic() - began) / _SHARE


TURNOVER = Turnover()
"""That of this process."""


class Guest(Protocol):
    """A connection that was let in."""

    @property
    def is_stranger(self) -> bool:
        """Whether it has not yet said hello."""

    @property
    def idle_since(self) -> float | None:
        """Since when it has been silent, if it belongs to no worker and no call waits on it."""

    def abort(self) -> None: ...


G = TypeVar("G", bound=Guest)


class Door(Generic[G]):
    """Lets connections in while there are places, and not too many that have not said hello.

    Otherwise the oldest that has not said hello makes room, then the one that has been idle
    longest; one that belongs to a worker stays. If there is none, newcomers wait.
    """

    def __init__(self, num_places: int, context: ssl.SSLContext | None) -> None:
        self.guests: set[G] = set()
        """The open connections; each removes itself when it is closed."""
        self.num_places = num_places
        self._context = context
        self._arriving: dict[asyncio.Task[None], float] = {}
        """Connections in their handshake, oldest first, and since when."""
        self._strangers: dict[G, float] = {}
        """Connections that may not have said hello, oldest first, and since when."""

    @contextlib.asynccontextmanager
    async def open(
        self, host: str, port: int, make: Callable[[], asyncio.BaseProtocol]
    ) -> AsyncIterator[list[socket.socket]]:
        """Listen while the block runs; `make` makes the protocol of a connection, a guest."""
        async with listening(host, port, lambda client: self._admit(client, make)) as sockets:
            yield sockets
        for task in list(self._arriving):
            task.cancel()

    def cut_silent(self, now: float, stranger: float, idle: float) -> None:
        """Close strangers and idle connections that were silent for these many seconds."""
        for guest, since in list(self._strangers.items()):
            if not guest.is_stranger:
                del self._strangers[guest]
            elif now - since > stranger:
                self._cut(guest)
        for guest in list(self.guests):
            silent = guest.idle_since
            if silent is not None and now - silent > idle:
                self._cut(guest)

    async def _admit(self, client: socket.socket, make: Callable[[], asyncio.BaseProtocol]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._strangers = {
                one: at
                for one, at in self._strangers.items()
                if one.is_stranger and one in self.guests
            }
            if len(self.guests) + len(self._arriving) >= self.num_places:
                _full.warning("all %d places for connections are taken", self.num_places)
            elif len(self._arriving) + len(self._strangers) < MOST_STRANGERS:
                break
            self._make_room(loop.time())
            await asyncio.sleep(_PAUSE)
        task = asyncio.create_task(self._welcome(client, make))
        self._arriving[task] = loop.time()
        task.add_done_callback(lambda _: self._arriving.pop(task, None))
        if len(self._arriving) + len(self._strangers) > _FEW:
            await asyncio.sleep(_BREATH)

    async def _welcome(
        self, client: socket.socket, make: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, TimeoutError, asyncio.TimeoutError):
            guest = (await open_transport(make, client, self._context))[1]
            self._strangers[guest] = loop.time()  # type: ignore[index]

    def _make_room(self, now: float) -> None:
        arriving = next(iter(self._arriving), None)
        if arriving is not None and now - self._arriving[arriving] > STAY:
            arriving.cancel()
            return
        stranger = next(iter(self._strangers), None)
        if stranger is not None and now - self._strangers[stranger] > STAY:
            self._cut(stranger)
            return
        if self._arriving or self._strangers:
            # One of them makes room soon; whoever has said hello stays until then.
            return
        idle = {guest: at for guest in self.guests if (at := guest.idle_since) is not None}
        oldest = min(idle, key=idle.__getitem__, default=None)
        if oldest is not None and now - idle[oldest] > STAY:
            self._cut(oldest)

    def _cut(self, guest: G) -> None:
        self._strangers.pop(guest, None)
        guest.abort()
