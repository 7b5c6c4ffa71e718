"""Show running jobs in a browser: waiting, batch sizes over time, and the gain of balancing.

Shows a run log, all run logs in a folder (the current one by default), or the jobs of a manager.
It only reads, and listens on loopback by default.

examples:
  evenstep dashboard run.jsonl
  evenstep dashboard out/
  evenstep dashboard --manager 127.0.0.1:7411
  evenstep dashboard logs/ --listen 0.0.0.0:7413 --viewer-token-file token \\
      --tls-cert cert.pem --tls-key key.pem
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from evenstep.cli.stopping import Stop
from evenstep.errors import InvalidSetting
from evenstep.insight.dashboard.app import STREAM, make_app
from evenstep.insight.dashboard.folder import Folder
from evenstep.insight.dashboard.managed import Managed
from evenstep.insight.dashboard.source import Source
from evenstep.manager import access
from evenstep.runlog.follower import ManagerFollower
from evenstep.runlog.manager_stream import ManagerStream

DEFAULT_PORT = 7413
MAX_CONNECTIONS = 128
"""Connections at once, more than there may be followers."""
_BACKLOG = 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", nargs="?", metavar="RUNLOG|DIR", type=Path, help="what to show; default: ."
    )
    manager = parser.add_argument_group("the jobs of a manager")
    manager.add_argument("--manager", metavar="HOST:PORT", help="the address of the manager")
    manager.add_argument(
        "--token-file", metavar="FILE", help="the token of the manager, or of the job to show"
    )
    manager.add_argument("--tls-ca", metavar="FILE", help="trusted certificates; turns TLS on")
    listening = parser.add_argument_group("listening")
    listening.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=f"127.0.0.1:{DEFAULT_PORT}",
        help=f"default: 127.0.0.1:{DEFAULT_PORT}; port 0: any free one",
    )
    listening.add_argument(
        "--viewer-token-file", metavar="FILE", help="the token that viewers must know"
    )
    listening.add_argument("--tls-cert", metavar="FILE", help="certificate, in PEM")
    listening.add_argument("--tls-key", metavar="FILE", help="its key, in PEM")
    listening.add_argument(
        "--insecure", action="store_true", help="allow other addresses without token and TLS"
    )


def run(args: argparse.Namespace) -> int:
    source = _source(args)
    if (args.tls_cert is None) != (args.tls_key is None):
        raise InvalidSetting("--tls-cert and --tls-key must be given together, got one of them")
    if args.tls_cert is not None:
        # Errors in them are reported here, not by the server later.
        access.listening_context(args.tls_cert, args.tls_key)
    host, port = access.parse_address(args.listen, DEFAULT_PORT)
    viewer_token = args.viewer_token_file
    token = access.read_token(viewer_token) if viewer_token else None
    safe = token is not None, args.tls_cert is not None
    warning = access.check_exposure(host, *safe, args.insecure, "see the jobs", "the dashboard")
    if warning:
        print(f"evenstep dashboard: warning: {warning}", file=sys.stderr)
    app = make_app(source, token, access.is_loopback(host), lambda: server.should_exit)
    server = uvicorn.Server(_config(app, args))
    # The server handles the signals that stop it, and raises them again when it has ended.
    with Stop(), _listen(host, port) as listening:
        host, port = listening.getsockname()[:2]
        scheme = "https" if args.tls_cert else "http"
        print(f"evenstep dashboard: {scheme}://{_in_url(host)}:{port}", flush=True)
        server.run(sockets=[listening])
    return 0


def _source(args: argparse.Namespace) -> Source:
    if args.manager is None:
        for option, given in (("--token-file", args.token_file), ("--tls-ca", args.tls_ca)):
            if given is not None:
                raise InvalidSetting(
                    f"{option} goes with --manager, got no manager; viewers are asked for the "
                    "token of --viewer-token-file"
                )
        path = args.path or Path()
        if not path.exists():
            raise InvalidSetting(f"a run log or a folder must be there, got {str(path)!r}")
        return Folder(path)
    if args.path is not None:
        raise InvalidSetting(f"--manager must come without RUNLOG|DIR, got {str(args.path)!r}")
    host, port = access.parse_address(args.manager)
    token = access.read_token(args.token_file) if args.token_file else None
    context = access.client_context(args.tls_ca) if args.tls_ca else None
    if token and context is None and not access.is_loopback(host):
        raise InvalidSetting(f"--tls-ca must be given, so that the token reaches {host} alone")
    stream = ManagerStream((host, port), token, context, access.job_of(token or ""))
    return Managed(ManagerFollower(stream), f"manager {_in_url(host)}:{port}")


def _config(app: Starlette, args: argparse.Namespace) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Protocol,
        # A stranger causes warnings: one per request that is none.
        log_level="error",
        lifespan="on",
        server_header=False,
        ssl_certfile=args.tls_cert,
        ssl_keyfile=args.tls_key,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=16 * 1024,
        backlog=_BACKLOG,
    )


class _Protocol(H11Protocol):
    """Takes the place of another connection if there are too many.

    That is the oldest without a request, or else the oldest that is no stream: nobody keeps others
    out by holding connections.
    """

    connections: set[_Protocol]  # type: ignore[assignment]
    since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= MAX_CONNECTIONS:
            others = [one for one in self.connections if not one.is_stream]
            other = min(others, key=lambda one: (one.is_answering, one.since))
            self.connections.discard(other)
            other.transport.abort()
        self.since = self.loop.time()
        super().connection_made(transport)

    @property
    def is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_stream(self) -> bool:
        return self.is_answering and self.scope["path"] == STREAM


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise access.cannot_listen((host, port), error, "--listen", "another dashboard") from error


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
