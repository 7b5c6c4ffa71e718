"""The pages of the HTTP port: health, metrics, and the event stream.

`/healthz` and `/livez` are for process supervisors and show nothing about the jobs; all other
pages need the token if the manager has one. The token of a job is enough for the job's events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs, quote, urlsplit

from evenstep.errors import Refused
from evenstep.manager.access import admitted_job, bearer, names_this_machine
from evenstep.manager.events import MAX_FOLLOWERS, EventStream, encode
from evenstep.manager.http_server import HttpAnswer, Request, plain
from evenstep.manager.metrics import Snapshot, render

Page = Callable[[Request], Awaitable[HttpAnswer]]


class HttpRoutes:
    """Finds the page of a request and checks whether the client may see it."""

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

    async def respond(self, request: Request) -> HttpAnswer:
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

    def _refusal(self, request: Request) -> HttpAnswer | None:
        try:
            only = admitted_job(bearer(request.headers.get("authorization", "")), self._token)
        except Refused:
            challenge = ("WWW-Authenticate", 'Bearer realm="evenstep manager"')
            return plain(
                401, "Authorization: Bearer must give the token of the manager or job", challenge
            )
        if only is not None and (urlsplit(request.target).path, _job(request)) != ("/events", only):
            return plain(403, f"the token is for /events?job={quote(only)} alone")
        host = request.headers.get("host", "localhost")
        if self._local and self._token is None and not names_this_machine(host):
            # DNS rebinding: a foreign page in a local browser whose name resolves to this host.
            return plain(403, "the Host of a request on loopback must be localhost or its address")
        return None

    async def _life(self, request: Request) -> HttpAnswer:
        return plain(200, "ok")

    async def _health(self, request: Request) -> HttpAnswer:
        problem = self._problem()
        return plain(200, "ok") if problem is None else plain(503, problem)

    async def _metrics(self, request: Request) -> HttpAnswer:
        accept = request.headers.get("accept", "")
        loop = asyncio.get_running_loop()
        text, kind = await loop.run_in_executor(self._renderer, render, self._snapshot(), accept)
        return HttpAnswer(200, text, kind)

    async def _events(self, request: Request) -> HttpAnswer:
        last = request.headers.get("last-event-id")
        if last is not None and not (last.isascii() and last.isdecimal() and len(last) < 20):
            return plain(400, "Last-Event-ID must be the number of an event")
        if not self._stream.admit():
            return plain(503, f"{MAX_FOLLOWERS} follow already", ("Retry-After", "10"))
        return HttpAnswer(
            200,
            content_type="text/event-stream; charset=utf-8",
            stream=follow(self._stream, None if last is None else int(last), _job(request)),
            release=self._stream.dismiss,
        )


def _job(request: Request) -> str | None:
    """Return the job that a request asks for; None if it is for all jobs."""
    return parse_qs(urlsplit(request.target).query).get("job", [None])[0]


HEARTBEAT = 15.0
"""Seconds without events after which a comment is sent, so that a dead connection is noticed."""
AT_ONCE = 64 * 1024
"""Bytes sent to a follower before it must have received them."""


async def follow(
    events: EventStream, last: int | None, job: str | None
) -> AsyncGenerator[bytes, None]:
    """Yield the events after the last one that a follower has seen, then the new ones.

    If `last` is None, only new ones; if `job` is None, those of all jobs.
    """
    position = events.newest if last is None else last
    if position > events.newest:
        # The number is from an earlier manager, whose clock was ahead.
        position = events.oldest - 1
    yield b": the events of an evenstep manager\n\n"
    while True:
        if not await events.newer(position, HEARTBEAT):
            yield b": nothing new\n\n"
            continue
        if position + 1 < events.oldest:
            missed = {"event": "missed", "first": position + 1, "last": events.oldest - 1}
            position = events.oldest - 1
            yield encode("missed", missed, position)
        text, position = _some(events, position, job)
        if text:
            yield text


def _some(events: EventStream, position: int, job: str | None) -> tuple[bytes, int]:
    """Return the next events, up to about `AT_ONCE` bytes, and the number of the last one."""
    texts: list[bytes] = []
    size = 0
    for event in events.after(position):
        position = event.number
        if job is None or event.job == job:
            texts.append(event.text)
            size += len(event.text)
            if size >= AT_ONCE:
                break
    return b"".join(texts), position
