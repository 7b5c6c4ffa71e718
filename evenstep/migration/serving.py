"""An agent at work: its parts put together, from the start until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from evenstep.errors import EvenstepError
from evenstep.manager.endpoint import Bounds, Connection
from evenstep.manager.line import Where
from evenstep.migration.bandwidth import Bandwidth
from evenstep.migration.courier import Couriers
from evenstep.migration.desk import Desk
from evenstep.migration.service import AgentService, largest_frame
from evenstep.partition_store import Agent, Partition

MAX_CONNECTIONS = 1_000
SWEEP = 0.25
"""Seconds between two looks at what was not answered."""

_READ = 256 * 1024
"""Bytes that are read at once."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """How an agent is started."""

    folder: Path
    listen: tuple[str, int]
    bandwidth: float | None = None
    """Bytes of rows a second, each way; None for no limit."""
    quota: int | None = None
    """A new quota of the partition, in bytes; None keeps the one it has."""
    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    """For those who call this agent."""
    peer_tls: ssl.SSLContext | None = None
    """For the agents that this one calls."""
    only_loopback: bool = True
    """Whether it hands samples to agents on this machine only."""


async def serve(options: Options, say: Callable[[str], None]) -> None:
    """Serve until the process is told to stop; `say` is told where."""
    with contextlib.ExitStack() as stack:
        partition = stack.enter_context(Partition.open(options.folder, write=True))
        if options.quota is not None and options.quota != partition.index.quota:
            partition.update(replace(partition.index, quota=options.quota))
        couriers = Couriers(
            lambda address: Where(address, options.token, options.peer_tls),
            Bandwidth(options.bandwidth),
        )
        stack.callback(couriers.stop)
        desk = Desk(Agent(partition), couriers, options.only_loopback)
        # Left first: nothing is at the desk any more when the partition is closed.
        desk_thread = stack.enter_context(ThreadPoolExecutor(1, "evenstep-desk"))
        await _listen(options, desk, desk_thread, lambda where: say(f"{partition.name} on {where}"))
    say("stopped")


async def _listen(
    options: Options, desk: Desk, desk_thread: ThreadPoolExecutor, ready: Callable[[str], None]
) -> None:
    loop = asyncio.get_running_loop()
    incoming = Bandwidth(options.bandwidth)
    service = AgentService(desk, options.token, incoming, loop, desk_thread)
    connections: set[Connection] = set()
    memory = memoryview(bytearray(_READ))
    bounds = Bounds(largest_frame, MAX_CONNECTIONS)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        listening = await loop.create_server(
            lambda: Connection(service, connections, memory, bounds),
            *options.listen,
            ssl=options.tls,
            ssl_handshake_timeout=10.0 if options.tls else None,
        )
    except OSError as error:
        host, port = options.listen
        raise EvenstepError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    sweeping = loop.create_task(_sweep(desk, desk_thread, connections))
    host, port = listening.sockets[0].getsockname()[:2]
    ready(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    await stop.wait()
    listening.close()
    sweeping.cancel()
    await asyncio.gather(sweeping, return_exceptions=True)
    for connection in list(connections):
        connection.peer.close()


async def _sweep(desk: Desk, desk_thread: ThreadPoolExecutor, connections: set[Connection]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SWEEP)
        for connection in list(connections):
            connection.close_if_silent(loop.time())
        try:
            await loop.run_in_executor(desk_thread, lambda: desk.sweep(time.monotonic()))
        except Exception:
            # One look that fails, as on a full disk, is followed by others.
            _log.exception("a sweep failed")
