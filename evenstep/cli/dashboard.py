"""Look at jobs while they run, in a browser: who waits, how batch sizes change, what is gained.

Shows a run log, all run logs in a folder (the current one by default), or the jobs of a manager.
It only reads; on loopback, unless --listen says otherwise.

examples:
  evenstep dashboard run.jsonl
  evenstep dashboard out/
  evenstep dashboard --manager 127.0.0.1:7412
  evenstep dashboard logs/ --listen 0.0.0.0:7413 --token-file token \\
      --tls-cert cert.pem --tls-key key.pem
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from evenstep.cli.stopping import Stop
from evenstep.errors import InvalidSetting
from evenstep.insight.dashboard.folder import Folder
from evenstep.insight.dashboard.managed import Managed
from evenstep.insight.dashboard.server import DashboardOptions, serve
from evenstep.insight.dashboard.source import Source
from evenstep.manager.access import (
    DEFAULT_HTTP_PORT,
    check_exposure,
    client_context,
    is_loopback,
    listening_context,
    parse_address,
    read_token,
)
from evenstep.runlog.follower import ManagerFollower
from evenstep.runlog.manager_stream import ManagerStream

DEFAULT_PORT = 7413


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", nargs="?", metavar="RUNLOG|DIR", type=Path, help="what to show; default: ."
    )
    parser.add_argument(
        "--manager", metavar="HOST:PORT", help="show the jobs of the manager seen there (--http)"
    )
    parser.add_argument("--manager-token-file", metavar="FILE", help="the manager's token")
    parser.add_argument(
        "--manager-ca", metavar="FILE", help="certificates to believe; turns TLS to it on"
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=f"127.0.0.1:{DEFAULT_PORT}",
        help=f"default: 127.0.0.1:{DEFAULT_PORT}; port 0: any free one",
    )
    parser.add_argument("--token-file", metavar="FILE", help="the token that viewers must know")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate, in PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its key, in PEM")
    parser.add_argument(
        "--insecure", action="store_true", help="other addresses also without token and TLS"
    )


def run(args: argparse.Namespace) -> int:
    source, options = _source(args), _options(args)
    safe = options.token is not None, options.certificate is not None
    warning = check_exposure(options.host, *safe, args.insecure, "see the jobs", "the dashboard")
    if warning:
        print(f"evenstep dashboard: warning: {warning}", file=sys.stderr)
    # The server handles the signals that stop it, and passes them on when it has ended.
    with Stop():
        serve(source, options, lambda where: print(f"evenstep dashboard: {where}", flush=True))
    return 0


def _source(args: argparse.Namespace) -> Source:
    if args.manager is None:
        if args.manager_token_file or args.manager_ca:
            raise InvalidSetting("--manager-token-file and --manager-ca must come with --manager")
        path = args.path or Path()
        if not path.exists():
            raise InvalidSetting(f"a run log or a folder must be there, got {str(path)!r}")
        return Folder(path)
    if args.path is not None:
        raise InvalidSetting(f"--manager must come without RUNLOG|DIR, got {str(args.path)!r}")
    host, port = parse_address(args.manager, DEFAULT_HTTP_PORT)
    token = read_token(args.manager_token_file) if args.manager_token_file else None
    context = client_context(args.manager_ca) if args.manager_ca else None
    if token and context is None and not is_loopback(host):
        raise InvalidSetting(f"--manager-ca must be given, so that the token reaches {host} alone")
    name = f"[{host}]" if ":" in host else host
    follower = ManagerFollower(ManagerStream((host, port), token, context))
    return Managed(follower, f"manager {name}:{port}")


def _options(args: argparse.Namespace) -> DashboardOptions:
    if (args.tls_cert is None) != (args.tls_key is None):
        raise InvalidSetting("--tls-cert and --tls-key must be given together, got one of them")
    if args.tls_cert is not None:
        # What is wrong with them is said here, and not by the server when it begins.
        listening_context(args.tls_cert, args.tls_key)
    host, port = parse_address(args.listen, DEFAULT_PORT)
    token = read_token(args.token_file) if args.token_file else None
    return DashboardOptions(host, port, token, args.tls_cert, args.tls_key)
