"""Watch a running job: a live table of its workers.

Follows a growing run log, or a job of a manager. Shows each worker's batch size, batch processing
time, waiting and CPU, and the current iteration time next to the estimates for plain BSP and the
optimum. Without a terminal, it prints plain lines. It ends with the run.

examples:
  evenstep watch run.jsonl
  evenstep watch --manager 127.0.0.1:7411 --job resnet
  evenstep watch --manager node7:7411 --token-file token --tls-ca cert.pem
"""

from __future__ import annotations

import argparse
import sys
import time

from evenstep.cli.arguments import positive
from evenstep.cli.watch_view import Watched, WatchView
from evenstep.errors import InvalidSetting
from evenstep.runlog.follower import FileFollower, JobFollower, ManagerFollower
from evenstep.runlog.manager_stream import ManagerStream

_POLL = 0.2
_SETTLE = 3
"""Polls after the end of a run in which another may begin, as when a manager replays its events."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", nargs="?", metavar="RUNLOG", help="a run log; it may not exist yet")
    parser.add_argument("--manager", metavar="HOST:PORT", help="the address of the manager")
    parser.add_argument("--job", metavar="JOB", help="of the manager; default: the first that runs")
    parser.add_argument("--token-file", metavar="FILE", help="the token of the manager or the job")
    parser.add_argument("--tls-ca", metavar="FILE", help="trusted certificates; turns TLS on")
    parser.add_argument(
        "--every", type=positive, default=5.0, metavar="S", help="between plain lines; 5 s"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the state as JSON, one line each time"
    )
    parser.add_argument(
        "--patience", type=positive, default=300.0, metavar="S",
        help="how long a manager may be unreachable, or a log missing; 300 s",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    if (args.log is None) == (args.manager is None):
        got = "neither" if args.log is None else "both"
        raise InvalidSetting(f"give either RUNLOG or --manager HOST:PORT, got {got}")
    if args.manager is not None:
        return _watch_manager(args)
    for name in ("job", "token_file", "tls_ca"):
        if getattr(args, name) is not None:
            raise InvalidSetting(f"--{name.replace('_', '-')} goes with --manager, got a run log")
    with WatchView(args.every, args.json) as view:
        return _watch(FileFollower(args.log), view, args.patience)


def _watch_manager(args: argparse.Namespace) -> int:
    from evenstep.manager import access

    host, port = access.parse_address(args.manager)
    if args.token_file and not args.tls_ca and not access.is_loopback(host):
        raise InvalidSetting(f"--tls-ca must be given, so that the token reaches {host} alone")
    token = access.read_token(args.token_file) if args.token_file else None
    tls = access.client_context(args.tls_ca) if args.tls_ca else None
    job = args.job or access.job_of(token or "")
    stream = ManagerStream((host, port), token, tls, job)
    # A manager that is unreachable at the start is an error.
    stream.connect()
    stream.start()
    follower = JobFollower(ManagerFollower(stream), job)
    try:
        with WatchView(args.every, args.json) as view:
            return _watch(follower, view, args.patience)
    finally:
        stream.close()


def _watch(source: FileFollower | JobFollower, view: WatchView, patience: float) -> int:
    """Show the records until the run ends, or until the source is unreachable for too long."""
    watched, polls_since_end, well_at = Watched(), 0, time.monotonic()
    while polls_since_end <= _SETTLE:
        watched.take(source.poll())
        watched.num_missed = source.num_missed
        problem = source.problem
        now = time.monotonic()
        if problem is None:
            well_at = now
        view.show(watched, problem)
        if now > well_at + patience:
            view.end(watched)
            print(f"evenstep: gave up after {patience:g} s: {problem}", file=sys.stderr)
            return 1
        polls_since_end = polls_since_end + 1 if watched.ended else 0
        if not source.behind:
            time.sleep(_POLL)
    view.end(watched)
    return 0
