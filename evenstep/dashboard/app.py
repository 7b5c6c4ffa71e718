"""The dashboard as an ASGI application: the page, its assets, and the stream; it only reads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from evenstep.dashboard.guard import Guard
from evenstep.dashboard.source import Source
from evenstep.dashboard.static import load
from evenstep.dashboard.stream import TICK, stream

MOST_FOLLOWERS = 32

_MAKE_WAY = 0.001
"""Seconds between two pieces of a log, in which pages are answered."""

_log = logging.getLogger(__name__)


def make_app(
    source: Source,
    token: str | None = None,
    local: bool = True,
    is_over: Callable[[], bool] = lambda: False,
) -> Starlette:
    """Return the application; streams end when `is_over` says so."""
    followers = _Followers()
    assets = load()

    async def show(request: Request) -> Response:
        asset = assets.get(request.path_params.get("name", "index.html"))
        if asset is None:
            return PlainTextResponse("there is no such page\n", 404)
        return Response(asset.content, media_type=asset.kind)

    async def follow(request: Request) -> Response:
        if followers.count >= MOST_FOLLOWERS:
            return PlainTextResponse(f"{MOST_FOLLOWERS} follow already\n", 503)
        job, worker = map(request.query_params.get, ("job", "worker"))
        if worker is not None and not (worker.isascii() and worker.isdecimal() and len(worker) < 9):
            return PlainTextResponse("worker must be the number of a worker\n", 400)
        events = stream(source, job, None if worker is None else int(worker), is_over)
        return _Followed(followers, events)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        source.start()
        reading = asyncio.create_task(_read(source))
        yield
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    return Starlette(
        routes=[
            Route("/", show),
            Route("/assets/{name}", show),
            Route("/api/stream", follow),
        ],
        middleware=[Middleware(Guard, token=token, local=local)],
        lifespan=lifespan,
    )


async def _read(source: Source) -> None:
    """Read what is new, a piece at a time, so that pages are answered in between."""
    while True:
        try:
            found = source.poll()
        except Exception:
            # A page that stands still and a line that says why are better than no dashboard.
            _log.exception("reading failed")
            found = False
        await asyncio.sleep(_MAKE_WAY if found else TICK)


class _Followers:
    """Counts the pages that are open."""

    def __init__(self) -> None:
        self.count = 0


class _Followed(StreamingResponse):
    """A stream that counts from when it is granted, so that many at once are not too many."""

    def __init__(self, followers: _Followers, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._followers = followers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._followers.count += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._followers.count -= 1
