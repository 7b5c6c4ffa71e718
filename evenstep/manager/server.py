"""The manager's process: creates all parts, serves, and stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from evenstep.errors import EvenstepError
from evenstep.manager.access import cannot_listen, is_loopback
from evenstep.manager.background import OnAThread
from evenstep.manager.endpoint import MAX_CONNECTIONS, Endpoint
from evenstep.manager.events import EventStream
from evenstep.manager.http_routes import HttpRoutes
from evenstep.manager.http_server import HttpPort
from evenstep.manager.job_settings import MAX_WORKERS
from evenstep.manager.jobs import Jobs
from evenstep.manager.listening import places
from evenstep.manager.log_format import log_notification
from evenstep.manager.metrics import Snapshot, snapshot_of
from evenstep.manager.notifications import Notifications
from evenstep.manager.run_logs import RunLogs
from evenstep.manager.service import Service

Address = tuple[str, int]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ManagerOptions:
    """The options of a manager."""

    listen: Address
    http: Address | None
    """The address of the HTTP port; None for none."""
    must_have_http: bool = True
    """Whether the manager refuses to start if that address is in use."""
    state: Path | None = None
    logs: Path | None = None
    """The folder of run logs, one per run of a job."""
    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None


async def serve(options: ManagerOptions, say: Callable[[str], None]) -> None:
    """Serve until a signal stops the process; `say` prints addresses and what was saved."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    making = OnAThread(loop.call_soon_threadsafe)
    notifications = Notifications()
    notifications.listen(log_notification)
    events = EventStream()
    notifications.listen(events.receive)
    num_places = places(MAX_CONNECTIONS)
    jobs = Jobs(
        options.state,
        notifications=notifications,
        background=making,
        # One job cannot take all places.
        max_workers=min(MAX_WORKERS, num_places // 2),
    )
    service = Service(jobs, clock, options.token)
    endpoint = Endpoint(service, options.tls, num_places)

    async with contextlib.AsyncExitStack() as stack:
        run_logs = None
        if options.logs is not None:
            run_logs = RunLogs(options.logs, lambda name: jobs.find(name).settings)
            run_logs.start()
            stack.callback(run_logs.close)
            notifications.listen(run_logs.receive)
        jobs.recover(clock())
        urls: list[str] = []
        if options.http is not None:
            observed = _Observed(service, endpoint, events, run_logs)
            urls = await _open_http_port(options, options.http, observed, stack)
        endpoint.http_port = urlsplit(urls[0]).port if urls else None

        def ready(where: str) -> None:
            # Objects made so far stay: the collector need not visit them between two reports.
            gc.freeze()
            # A boundary of a thousand workers creates some ten thousand short-lived objects.
            gc.set_threshold(50_000)
            found = f", {counted(len(jobs), 'job')} recovered" if jobs else ""
            say(f"listening on {where}{found}")
            if urls:
                say(f"metrics and events can be seen on {' and '.join(urls)}")

        with _listening(options.listen, "--listen"):
            await endpoint.run(*options.listen, ready)
        making.close()
    say(f"stopped; {_kept(jobs, options.state)}")


@dataclass(frozen=True, eq=False)
class _Observed:
    """The parts of a manager that the HTTP port shows."""

    service: Service
    endpoint: Endpoint
    events: EventStream
    run_logs: RunLogs | None

    def snapshot(self, port: HttpPort) -> Snapshot:
        return snapshot_of(
            self.service,
            connections=self.endpoint.num_connections,
            http_connections=port.num_connections,
            event_followers=self.events.num_followers,
            run_log_failures=self.run_logs.num_failures if self.run_logs else 0,
            run_log_left_out=self.run_logs.num_left_out if self.run_logs else 0,
        )

    def problem(self) -> str | None:
        return "the state cannot be written" if self.service.jobs.unwritten else None


async def _open_http_port(
    options: ManagerOptions, address: Address, observed: _Observed, stack: contextlib.AsyncExitStack
) -> list[str]:
    """Open the HTTP port until the stack is closed, and return its URLs, none if it failed."""
    local = is_loopback(address[0])
    pages = HttpRoutes(
        lambda: observed.snapshot(port), observed.problem, observed.events, options.token, local
    )
    port = HttpPort(pages.respond)
    stack.callback(pages.close)
    try:
        with _listening(address, "--http"):
            return await stack.enter_async_context(port.listening(*address, options.tls))
    except EvenstepError as error:
        if options.must_have_http:
            raise
        _log.warning("no metrics: %s", error)
        return []


@contextlib.contextmanager
def _listening(address: Address, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        holder = "another manager, which `evenstep manager status` shows"
        raise cannot_listen(address, error, option, holder) from error


def _kept(jobs: Jobs, state: Path | None) -> str:
    """Return a sentence about the jobs that were saved."""
    if state is None:
        return f"{counted(len(jobs), 'job')} not kept: there is no --state"
    lost = len(jobs.unwritten)
    kept = f"kept {counted(len(jobs) - lost, 'job')} in {state}"
    return f"{kept}; {counted(lost, 'job')} could not be written" if lost else kept


def counted(number: int, thing: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "job"), counted(0, "job")
    ('1 job', '0 jobs')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"
