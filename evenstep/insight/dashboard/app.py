"""The dashboard as an ASGI application: serves the page, its assets and the stream, read-only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evenstep.insight.dashboard.source import Source
from evenstep.insight.dashboard.stream import TICK, stream
from evenstep.manager.access import bearer, is_token, names_this_machine

MOST_FOLLOWERS = 32
STREAM = "/api/stream"

_PAUSE = 0.001
"""Seconds between two pieces of a log, in which pages are served."""

_log = logging.getLogger(__name__)


def make_app(
    source: Source,
    token: str | None = None,
    local: bool = True,
    is_over: Callable[[], bool] = lambda: False,
) -> Starlette:
    """Return the application; streams end when `is_over` returns true."""
    followers: set[_Followed] = set()
    assets = load()

    async def show(request: Request) -> Response:
        asset = assets.get(request.path_params.get("name", "index.html"))
        if asset is None:
            return PlainTextResponse("there is no such page\n", 404)
        return Response(asset.content, media_type=asset.kind)

    async def follow(request: Request) -> Response:
        if len(followers) >= MOST_FOLLOWERS:
            return PlainTextResponse(f"{MOST_FOLLOWERS} follow already\n", 503)
        job, worker, other = map(request.query_params.get, ("job", "worker", "other"))
        if worker is not None and not (worker.isascii() and worker.isdecimal() and len(worker) < 9):
            return PlainTextResponse("worker must be the number of a worker\n", 400)
        events = stream(source, job, None if worker is None else int(worker), is_over, other)
        return _Followed(followers, events)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        source.start()
        reading = asyncio.create_task(_read(source))
        yield
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    return Starlette(
        routes=[Route("/", show), Route("/assets/{name}", show), Route(STREAM, follow)],
        middleware=[Middleware(Guard, token=token, local=local)],
        lifespan=lifespan,
    )


async def _read(source: Source) -> None:
    """Read new records, a piece at a time, so that pages are served in between."""
    while True:
        try:
            found = source.poll()
        except Exception:
            # A page without updates and a logged error are better than no dashboard.
            _log.exception("reading failed")
            found = False
        await asyncio.sleep(_PAUSE if found else TICK)


class _Followed(StreamingResponse):
    """A stream that is among the followers while it is sent."""

    def __init__(self, followers: set[_Followed], events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._followers = followers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._followers.add(self)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._followers.discard(self)


TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""Media types by file name extension; the headers forbid a browser to guess them."""


class Asset(NamedTuple):
    """The content of a file, and its media type."""

    content: bytes
    kind: str


def load() -> Mapping[str, Asset]:
    """Return the assets by file name.

    >>> load()["index.html"].kind
    'text/html; charset=utf-8'
    """
    folder = files("evenstep.insight.dashboard") / "assets"
    return {
        file.name: Asset(file.read_bytes(), TYPES[file.name.rpartition(".")[2]])
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in TYPES
    }


ANSWERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer: only our scripts, nothing from other hosts, no frames."""


class Guard:
    """Checks host and token of requests. The page is no secret; the data under `/api/` are."""

    def __init__(self, app: ASGIApp, token: str | None, local: bool) -> None:
        self._app = app
        self._token = token
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(ANSWERS)
            await send(message)

        refusal = self._refusal(scope["path"], Headers(scope=scope))
        await (refusal or self._app)(scope, receive, answer)

    def _refusal(self, path: str, headers: Headers) -> PlainTextResponse | None:
        if self._local and not names_this_machine(headers.get("host", "")):
            # DNS rebinding: a foreign page in a local browser, under a name that resolves to us.
            return PlainTextResponse("the Host must be localhost or a loopback address\n", 403)
        given = bearer(headers.get("authorization", ""))
        if path.startswith("/api/") and not is_token(given, self._token):
            challenge = {"WWW-Authenticate": 'Bearer realm="evenstep dashboard"'}
            rule = "Authorization: Bearer must give the dashboard's token\n"
            return PlainTextResponse(rule, 401, challenge)
        return None
