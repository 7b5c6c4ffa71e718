"""What `evenstep partition` does between machines: agents that serve, and a migration by them.

Thrift is loaded when it is needed: partitions on one machine do without.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from evenstep.cli.arguments import count, positive, whole
from evenstep.cli.partition_view import print_migration
from evenstep.cli.stopping import terminate_at_eof
from evenstep.errors import InvalidSetting
from evenstep.partition.task import BANDWIDTH

if TYPE_CHECKING:
    from evenstep.migration.progress import Progress
    from evenstep.migration.serving import Options

DEFAULT_PORT = 7413
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
DEFAULT_NICE = 15
"""With it a thread gets 3 % of a core that another wants for itself."""

_log = logging.getLogger(__name__)


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=DEFAULT_ADDRESS,
        help="default: %(default)s; port 0: any free one",
    )
    bandwidth = parser.add_mutually_exclusive_group()
    bandwidth.add_argument(
        "--bandwidth",
        type=positive,
        default=BANDWIDTH,
        metavar="BYTES_PER_S",
        help="each way; default: %(default)g, which training beside it hardly feels",
    )
    bandwidth.add_argument(
        "--unlimited", dest="bandwidth", action="store_const", const=None, help="no limit"
    )
    parser.add_argument(
        "--nice",
        type=whole,
        default=DEFAULT_NICE,
        help="how far it steps back behind other processes, 0 to 19; default: %(default)d",
    )
    parser.add_argument("--quota", type=count, metavar="BYTES", help="a new one, for the rows")
    parser.add_argument("--token-file", metavar="FILE", help="the token that all agents share")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate, in PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its key, in PEM")
    parser.add_argument(
        "--tls-ca", metavar="FILE", help="certificates of other agents to believe; --tls-cert"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="other addresses also without token and TLS"
    )
    _add_until_eof(parser)


def add_agents_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("between machines")
    group.add_argument(
        "--agents",
        metavar="HOST:PORT,...",
        help="instead of folders: by which addresses agents can reach each other",
    )
    group.add_argument("--token-file", metavar="FILE", help="the token that all agents share")
    group.add_argument("--tls-ca", metavar="FILE", help="certificates to believe; turns TLS on")
    group.add_argument(
        "--patience",
        type=positive,
        default=60.0,
        metavar="SECONDS",
        help="without progress, until the migration is called off; default: %(default)g",
    )
    _add_until_eof(group)


def _add_until_eof(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--until-eof",
        action="store_true",
        help="end when standard input does, as when whoever started this is gone",
    )


def parse_batch_sizes(text: str | None, num_workers: int) -> list[int] | None:
    """Read a batch size per partition, where there are any.

    >>> parse_batch_sizes("64,192", 2)
    [64, 192]
    """
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != num_workers or not all(part.isdecimal() for part in parts):
        raise InvalidSetting(
            f"sizes must be {num_workers} batch sizes, one per partition, got {text!r}"
        )
    return [int(part) for part in parts]


def serve_partition(args: argparse.Namespace) -> int:
    """Run the agent of a partition until it is told to stop."""
    from evenstep.manager.access import check_exposure
    from evenstep.manager.logs import set_up
    from evenstep.migration.courtesy import keep_memory, step_back
    from evenstep.migration.serving import serve

    options = _options(args)
    if args.until_eof:
        terminate_at_eof()
    set_up("text")
    warning = check_exposure(
        options.listen[0],
        options.token is not None,
        options.tls is not None,
        args.insecure,
        "take and change samples",
        "an agent",
    )
    if warning is not None:
        _log.warning("%s", warning)
    step_back(args.nice)
    keep_memory()
    asyncio.run(serve(options, lambda text: print(f"evenstep partition: {text}", flush=True)))
    return 0


def migrate_between_agents(args: argparse.Namespace) -> int:
    """Move samples between the partitions of agents."""
    from evenstep.manager.access import client_context, parse_address, read_token
    from evenstep.manager.line import Where
    from evenstep.migration import Migration, RemoteAgent

    if args.until_eof:
        terminate_at_eof()
    token = read_token(args.token_file) if args.token_file else None
    tls = client_context(args.tls_ca) if args.tls_ca else None
    addresses = [_whole(*parse_address(text, DEFAULT_PORT)) for text in args.agents.split(",")]
    sizes = parse_batch_sizes(args.sizes, len(addresses))
    agents = [RemoteAgent(Where(address, token, tls)) for address in addresses]
    with ExitStack() as stack:
        for agent in agents:
            stack.callback(agent.close)
        migration = stack.enter_context(Migration(agents, args.patience, _show_progress))
        if not args.dry_run:
            migration.settle_lost(args.lost)
        before = () if args.dry_run else migration.finish()
        name, leaving = uuid.uuid4().hex[:12], args.leaving
        tasks = (
            ()
            if any(not task.final for task in before)
            else migration.plan(sizes, name, args.minimum, args.seed, args.chunk_size, leaving)
        )
        if not args.dry_run:
            tasks = migration.carry_out(tasks)
            if args.compact:
                migration.compact()
        print_migration((*before, *tasks), migration.sizes, args.dry_run, args.json)
    moved = all(task.phase == "done" for task in tasks) and all(task.final for task in before)
    return 0 if moved or args.dry_run else 1


def _options(args: argparse.Namespace) -> Options:
    from evenstep.manager.access import (
        client_context,
        listening_context,
        parse_address,
        read_token,
    )
    from evenstep.migration.serving import Options

    if (args.tls_cert is None) != (args.tls_key is None):
        raise InvalidSetting("--tls-cert and --tls-key must be given together, got one of them")
    authority = args.tls_ca or args.tls_cert
    safe = bool(args.token_file and args.tls_cert)
    return Options(
        folder=args.folder,
        listen=parse_address(args.listen, DEFAULT_PORT),
        bandwidth=args.bandwidth,
        quota=args.quota,
        token=read_token(args.token_file) if args.token_file else None,
        tls=listening_context(args.tls_cert, args.tls_key) if args.tls_cert else None,
        peer_tls=client_context(authority) if authority else None,
        only_loopback=not (safe or args.insecure),
    )


def _whole(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _show_progress(progress: Progress) -> None:
    if sys.stderr.isatty():
        over, staged = progress.over, progress.staged
        text = f"{over} of {progress.hand_overs} hand-overs over, {staged} chunks on their way"
        print(f"\r{text}", end="" if over < progress.hand_overs else "\n", file=sys.stderr)
