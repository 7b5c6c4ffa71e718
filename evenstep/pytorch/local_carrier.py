"""The carrier of migrations under training: agents of all workers, and a manager now and then."""

from __future__ import annotations

import socket
from pathlib import Path

from evenstep.core.arrays import Ints
from evenstep.errors import EvenstepError, InvalidSetting
from evenstep.manager.access import client_context, is_loopback, parse_address, read_token
from evenstep.pytorch.beside import AgentBeside, MigrationBeside, Outcome, Serving
from evenstep.training.meeting import Meeting, tell

_PATIENCE = 15.0
"""Seconds without progress at the start, where all workers wait."""


class AgentCarrier:
    """Moves samples between the partitions of agents, in a process of its own for each time."""

    def __init__(self, agents: list[str], serving: Serving, seed: int) -> None:
        self._agents, self._serving, self._seed = agents, serving, seed
        self._migration: MigrationBeside | None = None

    def begin(self, sizes: Ints, number: int) -> None:
        """Begin to make partitions as large as these sizes."""
        self.close()
        words = self._serving.migrate_words(self._agents, sizes.tolist(), self._seed + number)
        self._migration = MigrationBeside(words)

    @property
    def outcome(self) -> Outcome | None:
        """What became of what was begun last; None while it goes on."""
        return None if self._migration is None else self._migration.outcome

    def close(self) -> None:
        """Leave what goes on where it is."""
        migration, self._migration = self._migration, None
        if migration is not None:
            migration.close()


def start_agents(folder: Path, serving: Serving, meeting: Meeting) -> tuple[AgentBeside, list[str]]:
    """Start this worker's agent, and return the addresses of all workers'; all must call it.

    What an earlier training has left unfinished is finished before anybody goes on.
    """
    agent, problem = None, ""
    try:
        agent = AgentBeside(folder, serving)
    except (EvenstepError, OSError) as error:
        problem = str(error)
    try:
        mine = (socket.gethostname(), agent.address if agent else "", problem)
        told = tell(meeting, mine)
        hosts, addresses, problems = map(list, zip(*told, strict=True))
        _raise_first(problems)
        _check_reachable(hosts, addresses)
        _raise_first(tell(meeting, _finish(addresses, serving) if meeting.worker == 0 else ""))
    except BaseException:
        if agent is not None:
            agent.close()
        raise
    assert agent is not None
    return agent, addresses


def _raise_first(problems: list[str]) -> None:
    for worker, problem in enumerate(problems):
        if problem:
            raise EvenstepError(f"samples of worker {worker} cannot migrate: {problem}")


def _check_reachable(hosts: list[str], addresses: list[str]) -> None:
    if len(set(hosts)) == 1:
        return
    for worker, address in enumerate(addresses):
        if is_loopback(parse_address(address)[0]):
            raise InvalidSetting(
                "where workers are on several machines, agents must listen on an address that the "
                f"others reach, got {address} for worker {worker}: serving=Serving(listen=...)"
            )


def _finish(addresses: list[str], serving: Serving) -> str:
    """Finish what an earlier training has begun; return why that is not possible, if so."""
    from evenstep.manager.line import Where
    from evenstep.migration import Migration, RemoteAgent

    try:
        token = read_token(serving.token_file) if serving.token_file else None
        tls = client_context(serving.authority) if serving.authority else None
        agents = [RemoteAgent(Where(address, token, tls)) for address in addresses]
        with Migration(agents, min(serving.patience, _PATIENCE)) as manager:
            unfinished = [task.reason for task in manager.finish() if not task.final]
            in_transit = manager.in_transit
    except (EvenstepError, OSError) as error:
        return str(error)
    if in_transit:
        # Nobody would read them, and they might turn up somewhere in mid-training.
        unfinished.append(
            f"samples must be in a partition before training begins, got {', '.join(in_transit)} "
            "on their way (migrate with the partitions of all, or with --lost, ends that)"
        )
    return "; ".join(unfinished)
