"""The server of an agent: its parts put together, from the start until a signal stops it."""

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

from evenstep.errors import InvalidSetting
from evenstep.manager.access import (
    cannot_listen,
    check_exposure,
    client_context,
    format_address,
    listening_context,
    parse_address,
    read_token,
)
from evenstep.manager.connection import Where
from evenstep.manager.endpoint import HELLO, PATIENCE, Bounds, Connection
from evenstep.manager.listening import Door, places
from evenstep.partitions.agents.agent_calls import AgentCalls
from evenstep.partitions.agents.process_limits import Bandwidth, keep_memory, lower_priority
from evenstep.partitions.agents.sender import Senders
from evenstep.partitions.agents.service import AgentService, largest_frame
from evenstep.partitions.agents.settings import DEFAULT_PORT, AgentSettings
from evenstep.partitions.store.agent import Agent
from evenstep.partitions.store.partition import Partition

MAX_CONNECTIONS = 1_000
SWEEP = 0.25
"""Seconds between two looks for messages without an answer."""

_READ = 256 * 1024
"""Bytes that are read at once."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Access:
    """Where an agent listens, and by what it and its peers know each other."""

    listen: tuple[str, int]
    token: str | None = field(repr=False)
    tls: ssl.SSLContext | None
    """For those that call this agent."""
    peer_tls: ssl.SSLContext | None
    """For the agents that this one calls."""
    only_loopback: bool
    """Whether it hands samples to agents on this machine only."""


def run_agent(settings: AgentSettings, ready: Callable[[str, str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is called with the partition's name and the address.

    It changes the priority and the memory management of the whole process.
    """
    access = _access(settings)
    lower_priority(settings.nice)
    keep_memory()
    asyncio.run(_serve(settings, access, ready))


def _access(settings: AgentSettings) -> _Access:
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise InvalidSetting("a certificate and its key must be given together, got one of them")
    authority = settings.tls_ca or settings.tls_cert
    safe = bool(settings.token_file and settings.tls_cert)
    cert, key = settings.tls_cert, settings.tls_key
    access = _Access(
        parse_address(settings.listen, DEFAULT_PORT),
        read_token(settings.token_file) if settings.token_file else None,
        listening_context(cert, key) if cert and key else None,
        client_context(authority) if authority else None,
        only_loopback=not (safe or settings.insecure),
    )
    warning = check_exposure(
        access.listen[0],
        access.token is not None,
        access.tls is not None,
        settings.insecure,
        "take and change samples",
        "an agent",
    )
    if warning is not None:
        _log.warning("%s", warning)
    return access


async def _serve(
    settings: AgentSettings, access: _Access, ready: Callable[[str, str], None]
) -> None:
    with contextlib.ExitStack() as stack:
        partition = stack.enter_context(Partition.open(Path(settings.folder), write=True))
        if settings.quota is not None and settings.quota != partition.index.quota:
            partition.update(replace(partition.index, quota=settings.quota))
        senders = Senders(
            lambda address: Where(address, access.token, access.peer_tls),
            Bandwidth(settings.bandwidth),
        )
        stack.callback(senders.stop)
        agent_calls = AgentCalls(Agent(partition), senders, access.only_loopback)
        # Left first: no call is being carried out any more when the partition is closed.
        thread = stack.enter_context(ThreadPoolExecutor(1, "evenstep-partition"))
        loop, incoming = asyncio.get_running_loop(), Bandwidth(settings.bandwidth)
        service = AgentService(agent_calls, access.token, incoming, loop, thread)
        door: Door[Connection] = Door(places(MAX_CONNECTIONS), access.tls)
        sweeping = loop.create_task(_sweep(agent_calls, thread, door))
        try:
            await _listen(access, service, door, lambda where: ready(partition.name, where))
        finally:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)


async def _listen(
    access: _Access,
    service: AgentService,
    door: Door[Connection],
    ready: Callable[[str], None],
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    memory = memoryview(bytearray(_READ))
    bounds = Bounds(largest_frame)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    opened = False
    try:
        async with door.open(
            *access.listen, lambda: Connection(service, door.guests, memory, bounds)
        ) as sockets:
            opened = True
            ready(format_address(*sockets[0].getsockname()[:2]))
            await stop.wait()
    except OSError as error:
        if opened:
            raise
        holder = "the agent of another partition"
        raise cannot_listen(access.listen, error, "--listen", holder) from error
    for connection in list(door.guests):
        connection.peer.close()


async def _sweep(
    agent_calls: AgentCalls, thread: ThreadPoolExecutor, door: Door[Connection]
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SWEEP)
        door.cut_silent(loop.time(), HELLO, PATIENCE)
        try:
            await loop.run_in_executor(thread, lambda: agent_calls.sweep(time.monotonic()))
        except Exception:
            # One sweep that fails, as on a full disk, is followed by others.
            _log.exception("a sweep failed")
