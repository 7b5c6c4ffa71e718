"""The dashboard at work: listens, and serves until it is told to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import uvicorn

from evenstep.errors import EvenstepError
from evenstep.insight.dashboard.app import make_app
from evenstep.insight.dashboard.source import Source
from evenstep.manager.access import is_loopback

_BACKLOG = 128


@dataclass(frozen=True)
class DashboardOptions:
    """Where a dashboard listens, and who may look."""

    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    certificate: str | None = None
    key: str | None = None


def serve(source: Source, options: DashboardOptions, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `say` is told where."""
    local = is_loopback(options.host)
    app = make_app(source, options.token, local, lambda: server.should_exit)
    config = uvicorn.Config(
        app,
        log_level="warning",
        lifespan="on",
        server_header=False,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=16 * 1024,
        limit_concurrency=200,
    )
    server = uvicorn.Server(config)
    with _listen(options.host, options.port) as listening:
        host, port = listening.getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        say(f"http{'s' if options.certificate else ''}://{name}:{port}")
        server.run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise EvenstepError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
