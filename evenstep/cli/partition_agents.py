"""`evenstep partition` between machines: runs agents, and migrates between them.

Thrift is imported when it is needed: partitions on one machine work without it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenstep.cli.arguments import count, positive, whole
from evenstep.cli.partition_view import print_migration
from evenstep.errors import InvalidSetting, ManagerUnreachable
from evenstep.partitions.agents.process_limits import terminate_at_eof
from evenstep.partitions.agents.settings import (
    BANDWIDTH,
    DEFAULT_ADDRESS,
    NICE,
    PATIENCE,
    AgentSettings,
    MigrationSettings,
)

if TYPE_CHECKING:
    from evenstep.partitions.agents.driver import Progress


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="the partition")
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
        help="each way; default: %(default)g, which hardly slows down a training",
    )
    bandwidth.add_argument(
        "--unlimited", dest="bandwidth", action="store_const", const=None, help="no limit"
    )
    parser.add_argument(
        "--nice",
        type=whole,
        default=NICE,
        help="lowers its priority by this number, 0 to 19; default: %(default)d",
    )
    parser.add_argument("--quota", type=count, metavar="BYTES", help="a new one, for the rows")
    parser.add_argument("--token-file", metavar="FILE", help="the token that all agents share")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate, in PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its key, in PEM")
    parser.add_argument(
        "--tls-ca", metavar="FILE", help="trusted certificates of other agents; --tls-cert"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="allow other addresses without token and TLS"
    )
    _add_until_eof(parser)


def add_agents_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("between machines")
    group.add_argument(
        "--agents",
        metavar="HOST:PORT,...",
        help="instead of folders: the addresses at which agents reach each other",
    )
    group.add_argument("--token-file", metavar="FILE", help="the token that all agents share")
    group.add_argument("--tls-ca", metavar="FILE", help="trusted certificates; turns TLS on")
    group.add_argument(
        "--patience",
        type=positive,
        default=PATIENCE,
        metavar="S",
        help="without progress, until the migration is cancelled; default: %(default)g",
    )
    _add_until_eof(group)


def _add_until_eof(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--until-eof",
        action="store_true",
        help="end when standard input ends, for example when the parent process has exited",
    )


def parse_batch_sizes(text: str | None, num_workers: int) -> list[int] | None:
    """Read a batch size per partition; None without any.

    >>> parse_batch_sizes("64,192", 2)
    [64, 192]
    """
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != num_workers or not all(part.isdecimal() for part in parts):
        raise InvalidSetting(
            f"--batch-sizes must be {num_workers} batch sizes, one per partition, got {text!r}"
        )
    return [int(part) for part in parts]


def serve_partition(args: argparse.Namespace) -> int:
    """Run the agent of a partition until a signal stops it."""
    from evenstep.manager.log_format import set_up
    from evenstep.partitions.agents.agent_server import run_agent

    if args.until_eof:
        terminate_at_eof()
    set_up("text")
    settings = AgentSettings(**_options(args, AgentSettings, folder=str(args.folder)))
    run_agent(settings, lambda name, address: _say(f"{name} on {address}"))
    _say("stopped")
    return 0


def migrate_between_agents(args: argparse.Namespace) -> int:
    """Move samples between the partitions of agents."""
    from evenstep.partitions.agents.migration_run import migrate

    if args.until_eof:
        terminate_at_eof()
    agents = args.agents.split(",")
    sizes = parse_batch_sizes(args.batch_sizes, len(agents))
    options = _options(args, MigrationSettings, agents=agents, batch_sizes=sizes)
    settings = MigrationSettings(**options)
    try:
        result = migrate(settings, _show_progress)
    except ManagerUnreachable as error:
        print(f"evenstep partition: {error}; gave up: run it again", file=sys.stderr)
        return 1
    print_migration(result.tasks, result.sizes, args.dry_run, args.json)
    return 0 if result.succeeded else 1


def _options(args: argparse.Namespace, settings: type, **others: Any) -> dict[str, Any]:
    """Return the settings of a class by name: others, and the arguments of the same name."""
    names = [field.name for field in fields(settings) if field.name not in others]
    return {name: getattr(args, name) for name in names} | others


def _say(text: str) -> None:
    print(f"evenstep partition: {text}", flush=True)


def _show_progress(progress: Progress) -> None:
    if sys.stderr.isatty():
        over, staged = progress.over, progress.staged
        text = f"{over} of {progress.hand_overs} hand-overs over, {staged} chunks on their way"
        print(f"\r{text}", end="" if over < progress.hand_overs else "\n", file=sys.stderr)
