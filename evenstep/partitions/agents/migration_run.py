"""One migration from its settings to its result, for the command line and for other programs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from evenstep.manager.access import client_context, format_address, parse_address, read_token
from evenstep.manager.connection import Where
from evenstep.partitions.agents.driver import Migration, Progress
from evenstep.partitions.agents.remote_agent import TIMEOUT, RemoteAgent
from evenstep.partitions.agents.settings import DEFAULT_PORT, MigrationSettings
from evenstep.partitions.handover.task import Task


@dataclass(frozen=True)
class MigrationResult:
    """The result of a migration."""

    tasks: tuple[Task, ...]
    """All hand-overs, with those that an earlier manager began and this one finished."""
    sizes: dict[str, int]
    """Samples of each partition afterwards."""
    succeeded: bool
    """Whether all samples moved; a dry run always succeeds."""


def remote_agents(
    addresses: Sequence[str], token_file: str | None, tls_ca: str | None, patience: float = TIMEOUT
) -> list[RemoteAgent]:
    """Return the agents at these addresses, with the token and the certificates of the files.

    No call waits for an answer for longer than `patience` seconds.
    """
    token = read_token(token_file) if token_file else None
    tls = client_context(tls_ca) if tls_ca else None
    complete = [format_address(*parse_address(address, DEFAULT_PORT)) for address in addresses]
    timeout = min(patience, TIMEOUT)
    return [RemoteAgent(Where(address, token, tls), timeout) for address in complete]


def migrate(
    settings: MigrationSettings, on_progress: Callable[[Progress], None] = lambda progress: None
) -> MigrationResult:
    """Finish what an earlier manager began, then carry out the migration."""
    agents = remote_agents(settings.agents, settings.token_file, settings.tls_ca, settings.patience)
    with ExitStack() as stack:
        for agent in agents:
            stack.callback(agent.close)
        migration = stack.enter_context(Migration(agents, settings.patience, on_progress))
        if settings.dry_run:
            tasks = _plan(migration, settings)
            return MigrationResult(tasks, migration.sizes, succeeded=True)
        migration.settle_lost(settings.lost)
        before = migration.finish()
        finished = all(task.final for task in before)
        tasks = migration.carry_out(_plan(migration, settings) if finished else ())
        if settings.compact:
            migration.compact()
        succeeded = finished and all(task.phase == "done" for task in tasks)
        return MigrationResult((*before, *tasks), migration.sizes, succeeded)


def _plan(migration: Migration, settings: MigrationSettings) -> tuple[Task, ...]:
    return migration.plan(
        settings.batch_sizes,
        uuid.uuid4().hex[:12],
        settings.minimum,
        settings.seed,
        settings.chunk_size,
        settings.leaving,
    )
