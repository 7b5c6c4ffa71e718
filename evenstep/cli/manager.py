"""Run the manager: a service that turns the reports of many jobs' workers into batch sizes.

Without an action it listens until it is stopped. `create` makes a job on a running manager,
`status` shows its jobs, and `token` prints a token that is for one job alone.

examples:
  evenstep manager
  evenstep manager --listen 0.0.0.0:7411 --state /var/lib/evenstep \\
      --token-file token --tls-cert cert.pem --tls-key key.pem
  evenstep manager create resnet --workers 8 --total 1024
  evenstep manager status resnet --json
  evenstep manager token resnet --token-file token > resnet.token
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

from evenstep.cli.arguments import count, whole
from evenstep.cli.printing import print_json, say
from evenstep.errors import InvalidSetting
from evenstep.manager.access import (
    DEFAULT_ADDRESS,
    DEFAULT_HTTP_ADDRESS,
    DEFAULT_HTTP_PORT,
    check_exposure,
    client_context,
    job_token,
    listening_context,
    parse_address,
    read_own_token,
    read_token,
)
from evenstep.manager.connection import ServiceConnection, Where
from evenstep.manager.job_settings import JobSettings, check_name
from evenstep.manager.log_format import FORMATS, set_up
from evenstep.manager.messages import from_settings
from evenstep.manager.server import ManagerOptions, serve
from evenstep.policies import default_policy

_PATIENCE = 10.0
_LISTENING = ("listen", "http", "state", "logs", "tls_cert", "tls_key", "insecure")
_SETTINGS = tuple(field.name for field in fields(JobSettings))
_CREATING = (*_SETTINGS, "on_cpus", "reuse")
_UNUSED = {
    None: (*_CREATING, "manager", "tls_ca", "json"),
    "create": (*_LISTENING, "json"),
    "status": (*_LISTENING, *_CREATING),
    "token": (*_LISTENING, *_CREATING, "manager", "tls_ca", "json"),
}
"""The options that do not go with an action."""

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", nargs="?", choices=["create", "status", "token"], help="default: listen"
    )
    parser.add_argument("job", nargs="?", metavar="JOB", help="for create, status and token")
    run_it = parser.add_argument_group("listening")
    run_it.add_argument(
        "--listen", metavar="HOST:PORT", help=f"default: {DEFAULT_ADDRESS}; port 0: any free one"
    )
    run_it.add_argument(
        "--http",
        metavar="HOST:PORT",
        help=f"for /metrics, /events, /healthz, or off; default: {DEFAULT_HTTP_ADDRESS}",
    )
    run_it.add_argument("--state", metavar="DIR", type=Path, help="where jobs are stored")
    run_it.add_argument(
        "--logs", metavar="DIR", type=Path, help="where run logs of all jobs are written"
    )
    run_it.add_argument(
        "--log-format", choices=FORMATS, default="text", help="of its own log lines; text"
    )
    run_it.add_argument("--token-file", metavar="FILE", help="the token that clients must know")
    run_it.add_argument("--tls-cert", metavar="FILE", help="certificate, in PEM")
    run_it.add_argument("--tls-key", metavar="FILE", help="its key, in PEM")
    run_it.add_argument(
        "--insecure", action="store_true", help="allow other addresses without token and TLS"
    )
    ask = parser.add_argument_group("create, status and token (these take --token-file too)")
    ask.add_argument(
        "--manager", metavar="HOST:PORT", help=f"its address; default: {DEFAULT_ADDRESS}"
    )
    ask.add_argument("--tls-ca", metavar="FILE", help="trusted certificates; turns TLS on")
    ask.add_argument("--workers", type=count, metavar="N", help="workers at the start of the job")
    ask.add_argument("--total", type=count, metavar="X", help="samples of one iteration")
    ask.add_argument(
        "--policy",
        metavar="P",
        help=f"default: {JobSettings.policy}, or {_policy(True)} with --on-cpus",
    )
    ask.add_argument(
        "--on-cpus", action="store_true", help="the workers compute on CPUs and report their usage"
    )
    ask.add_argument("--predictor", metavar="Q", help=f"default: {JobSettings.predictor}")
    ask.add_argument("--minimum", type=whole, metavar="N", help="smallest batch size; 1")
    ask.add_argument(
        "--granularity", type=count, metavar="N", help="batch sizes are multiples of this; 1"
    )
    ask.add_argument(
        "--elastic", action="store_true", default=None, help="further workers may join later"
    )
    ask.add_argument("--reuse", metavar="OTHER", help="start with what this job has learned")
    ask.add_argument("--json", action="store_true", help="status as JSON")


def run(args: argparse.Namespace) -> int:
    actions = {None: _listen, "create": _create, "status": _status, "token": _token}
    for name in _UNUSED[args.action]:
        if getattr(args, name) not in (None, False):
            option, action = f"--{name.replace('_', '-')}", args.action or "listening"
            raise InvalidSetting(f"{option} must not be given, as {action} has no use for it")
    return actions[args.action](args)


def _listen(args: argparse.Namespace) -> int:
    options = _options(args)
    set_up(args.log_format)
    _check_exposure(options, args.insecure)
    for folder in (options.state, options.logs):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(serve(options, lambda text: print(f"evenstep manager: {text}", flush=True)))
    return 0


def _check_exposure(options: ManagerOptions, insecure: bool) -> None:
    """Refuse exposed addresses without token and TLS, or warn of them."""
    safe = options.token is not None, options.tls is not None
    warnings = [check_exposure(options.listen[0], *safe, insecure)]
    if options.http is not None:
        warnings.append(check_exposure(options.http[0], *safe, insecure, "see the jobs"))
    for warning in filter(None, warnings):
        _log.warning("%s", warning)


def _options(args: argparse.Namespace) -> ManagerOptions:
    if (args.tls_cert is None) != (args.tls_key is None):
        raise InvalidSetting("--tls-cert and --tls-key must be given together, got one of them")
    http = args.http or DEFAULT_HTTP_ADDRESS
    return ManagerOptions(
        listen=parse_address(args.listen or DEFAULT_ADDRESS),
        http=None if http == "off" else parse_address(http, DEFAULT_HTTP_PORT),
        must_have_http=args.http is not None,
        state=args.state,
        logs=args.logs,
        token=read_own_token(args.token_file) if args.token_file else None,
        tls=listening_context(args.tls_cert, args.tls_key) if args.tls_cert else None,
    )


def _create(args: argparse.Namespace) -> int:
    if args.job is None or args.workers is None or args.total is None:
        raise InvalidSetting("create needs JOB, --workers and --total")
    job = check_name("job", args.job)
    given = {name: getattr(args, name) for name in _SETTINGS if getattr(args, name) is not None}
    settings = JobSettings(**{"policy": _policy(args.on_cpus), **given}).check()
    _ask(args, "create", job=job, settings=from_settings(settings), reuse=args.reuse)
    reuses = f", reuses what {args.reuse} has learned" if args.reuse else ""
    say([f"job {job}: {settings.workers} workers, {settings.total} samples an iteration{reuses}"])
    return 0


def _policy(on_cpus: bool) -> str:
    return default_policy("cpu" if on_cpus else None, reads_usage=on_cpus)


def _status(args: argparse.Namespace) -> int:
    jobs = _ask(args, "status", job=args.job or "")
    if args.json:
        print_json([_plain(job) for job in jobs])
        return 0
    say([line for job in jobs for line in _lines(job)] or ["no jobs"], hanging=2)
    return 0


def _token(args: argparse.Namespace) -> int:
    if args.job is None or args.token_file is None:
        raise InvalidSetting("token needs JOB and --token-file, the file of the manager's token")
    print(job_token(read_own_token(args.token_file), check_name("job", args.job)))
    return 0


def _ask(args: argparse.Namespace, call: str, **arguments: Any) -> Any:
    token = read_token(args.token_file) if args.token_file else None
    tls = client_context(args.tls_ca) if args.tls_ca else None
    where = Where(args.manager or DEFAULT_ADDRESS, token, tls)
    with closing(ServiceConnection(where, _PATIENCE)) as connection:
        return connection.call(call, _PATIENCE, **arguments)


def _lines(job: Any) -> list[str]:
    settings = job.settings
    state = (
        f"at iteration {job.iteration}, plan {job.plan.number}"
        if job.running
        else f"waiting for {max(0, settings.workers - len(job.workers))} workers"
    )
    lines = [f"{job.job}: {state}; total {settings.total}, {settings.policy}, {settings.predictor}"]
    for worker in job.workers:
        size = "-" if worker.batch_size is None else worker.batch_size
        connected = "connected" if worker.connected else "away"
        reported = "reported" if worker.reported else "not reported"
        lines.append(f"  {worker.worker}: batch size {size}, {connected}, {reported}")
    return lines


def _plain(value: Any) -> Any:
    """Return a Thrift struct in JSON's types."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if hasattr(value, "thrift_spec"):
        names = [field[1] for field in value.thrift_spec.values()]
        return {name: _plain(getattr(value, name)) for name in names}
    return value
