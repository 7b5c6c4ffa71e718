"""What is to be seen on the HTTP port: health, metrics, and the event stream.

`/healthz` and `/livez` are for whoever keeps the manager running and say nothing about the jobs;
all else needs the token where the manager has one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs, urlsplit

from evenstep.manager.access import bearer, is_token, names_this_machine
from evenstep.manager.events import EventStream
from evenstep.manager.following import MAX_FOLLOWERS, follow
from evenstep.manager.metrics import render
from evenstep.manager.snapshot import Snapshot
from evenstep.manager.web import Answer, Request, plain

Page = Callable[[Request], Awaitable[Answer]]


class Pages:
    """Finds the page of a request, and lets see it who may."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        problem: Callable[[], str | None],
        events: EventStream,
        token: str | None = None,
        local: bool = True,
    ) -> None:
        self._snapshot = snapshot
        self._problem = problem
        self._stream = events
        self._token = token
        self._local = local
        self._renderer = ThreadPoolExecutor(1, "evenstep-metrics")
        self._open: dict[str, Page] = {"/healthz": self._health, "/livez": self._life}
        self._guarded: dict[str, Page] = {"/metrics": self._metrics, "/events": self._events}

    async def respond(self, request: Request) -> Answer:
        try:
            path = urlsplit(request.target).path
        except ValueError:
            return plain(400, "Bad Request")
        page = self._open.get(path) or self._guarded.get(path)
        if page is None:
            return plain(404, f"there are {', '.join([*self._open, *self._guarded])}")
        if request.method not in ("GET", "HEAD"):
            return plain(405, "only GET and HEAD", ("Allow", "GET, HEAD"))
        if path in self._guarded and (refusal := self._refusal(request)):
            return refusal
        return await page(request)

    def close(self) -> None:
        self._renderer.shutdown(wait=False, cancel_futures=True)

    def _refusal(self, request: Request) -> Answer | None:
        if not is_token(bearer(request.headers.get("authorization", "")), self._token):
            challenge = ("WWW-Authenticate", 'Bearer realm="evenstep manager"')
            return plain(401, "Authorization: Bearer must give the manager's token", challenge)
        host = request.headers.get("host", "localhost")
        if self._local and self._token is None and not names_this_machine(host):
            # A page of elsewhere, in a browser of here, under a name that leads here.
            return plain(403, "the Host of a request on loopback must be localhost or its address")
        return None

    async def _life(self, request: Request) -> Answer:
        return plain(200, "ok")

    async def _health(self, request: Request) -> Answer:
        problem = self._problem()
        return plain(200, "ok") if problem is None else plain(503, problem)

    async def _metrics(self, request: Request) -> Answer:
        accept = request.headers.get("accept", "")
        loop = asyncio.get_running_loop()
        text, kind = await loop.run_in_executor(self._renderer, render, self._snapshot(), accept)
        return Answer(200, text, kind)

    async def _events(self, request: Request) -> Answer:
        if self._stream.num_followers >= MAX_FOLLOWERS:
            return plain(503, f"{MAX_FOLLOWERS} follow already", ("Retry-After", "10"))
        last = request.headers.get("last-event-id")
        if last is not None and not (last.isascii() and last.isdecimal() and len(last) < 20):
            return plain(400, "Last-Event-ID must be the number of an event")
        job = parse_qs(urlsplit(request.target).query).get("job", [None])[0]
        stream = follow(self._stream, None if last is None else int(last), job)
        return Answer(200, content_type="text/event-stream; charset=utf-8", stream=stream)
