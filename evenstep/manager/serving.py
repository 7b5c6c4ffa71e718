"""A manager at work: its parts put together, from the start to the last line that it says."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from evenstep.errors import EvenstepError
from evenstep.manager.access import is_loopback
from evenstep.manager.endpoint import Endpoint
from evenstep.manager.jobs import Jobs
from evenstep.manager.news import News
from evenstep.manager.pages import Pages
from evenstep.manager.service import Service
from evenstep.manager.snapshot import Snapshot, snapshot_of
from evenstep.manager.web import HttpPort

Address = tuple[str, int]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """How a manager is started."""

    listen: Address
    http: Address | None
    """Where it is looked at; None: nowhere."""
    must_have_http: bool = True
    """Whether it does not start where that address is taken."""
    state: Path | None = None
    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None


async def serve(options: Options, say: Callable[[str], None]) -> None:
    """Serve until the process is told to stop; `say` is told where, and what was kept."""
    clock = asyncio.get_running_loop().time
    jobs = Jobs(options.state, news=News())
    jobs.recover(clock())
    service = Service(jobs, clock, options.token)
    endpoint = Endpoint(service, options.tls)

    async with _http(options, service, endpoint) as urls:

        def ready(where: str) -> None:
            # What is there now stays: the collector need not look at it between two reports.
            gc.freeze()
            found = f", {counted(len(jobs), 'job')} recovered" if jobs else ""
            say(f"listening on {where}{found}")
            if urls:
                say(f"to be seen on {' and '.join(urls)}")

        with _listening(options.listen):
            await endpoint.run(*options.listen, ready)
    say(f"stopped; {_kept(jobs, options.state)}")


@contextlib.asynccontextmanager
async def _http(options: Options, service: Service, endpoint: Endpoint) -> AsyncIterator[list[str]]:
    """Let the manager be looked at while the block runs, if it can be; tell where."""
    if options.http is None:
        yield []
        return

    def snapshot() -> Snapshot:
        return snapshot_of(
            service,
            connections=endpoint.num_connections,
            http_connections=port.num_connections,
        )

    def problem() -> str | None:
        return "the state cannot be written" if service.jobs.unwritten else None

    pages = Pages(snapshot, problem, options.token, local=is_loopback(options.http[0]))
    port = HttpPort(pages.respond)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(pages.close)
        urls: list[str] = []
        try:
            with _listening(options.http):
                listening = port.listening(*options.http, options.tls)
                urls = await stack.enter_async_context(listening)
        except EvenstepError as error:
            if options.must_have_http:
                raise
            _log.warning("going on without metrics: %s; give another address with --http", error)
        yield urls


@contextlib.contextmanager
def _listening(address: Address) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        host, port = address
        raise EvenstepError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def _kept(jobs: Jobs, state: Path | None) -> str:
    """Say what of the jobs outlives the manager."""
    if state is None:
        return f"{counted(len(jobs), 'job')} not kept: there is no --state"
    lost = len(jobs.unwritten)
    kept = f"kept {counted(len(jobs) - lost, 'job')} in {state}"
    return f"{kept}; {counted(lost, 'job')} could not be written" if lost else kept


def counted(number: int, thing: str) -> str:
    """Return how many things there are.

    >>> counted(1, "job"), counted(0, "job")
    ('1 job', '0 jobs')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"
