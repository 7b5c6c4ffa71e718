"""Carries out migrations during training: agents of all workers, a process per migration."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path

from evenstep.core import Ints
from evenstep.errors import EvenstepError, InvalidSetting
from evenstep.manager.access import is_loopback, parse_address
from evenstep.partitions.handover.task import MigrationOutcome
from evenstep.pytorch.background_processes import AgentProcess, MigrationProcess, Serving
from evenstep.training.collective import Collective, gather_values

_PATIENCE = 15.0
"""Seconds without progress at the start, while all workers wait."""


class AgentCarrier:
    """Moves samples between the partitions of agents, in a process per migration."""

    def __init__(self, agents: list[str], serving: Serving, seed: int) -> None:
        self._agents, self._serving, self._seed = agents, serving, seed
        self._migration: MigrationProcess | None = None

    def begin(self, sizes: Ints, number: int) -> None:
        """Start a migration to partitions of these sizes."""
        self.close()
        settings = self._serving.migration(self._agents, sizes.tolist(), self._seed + number)
        self._migration = MigrationProcess(settings)

    @property
    def outcome(self) -> MigrationOutcome | None:
        """The outcome of the last migration, or None while one is running."""
        return None if self._migration is None else self._migration.outcome

    def close(self) -> None:
        """Stop a running migration."""
        migration, self._migration = self._migration, None
        if migration is not None:
            migration.close()


def start_agents(
    folder: Path, serving: Serving, collective: Collective, seed: int = 0
) -> tuple[AgentProcess, list[str]]:
    """Start this worker's agent, and return the addresses of all agents; all must call it.

    Settings of migrations, with their `seed`, are checked as well. An error on one worker is raised
    on all. Hand-overs that an earlier training left open are finished first.
    """
    agent, problem, cause = None, "", None
    try:
        # A wrong setting would otherwise stop worker 0 alone, when its first migration begins.
        serving.migration((), (), seed)
        agent = AgentProcess(folder, serving)
    except Exception as error:
        problem, cause = str(error) or repr(error), error
    try:
        found = (agent.address, agent.bound) if agent else ("", "")
        gathered = gather_values(collective, (socket.gethostname(), *found, problem))
        hosts, addresses, bound, problems = map(list, zip(*gathered, strict=True))
        _raise_first(problems, cause)
        _check_reachable(hosts, addresses, bound)
        _raise_first(
            gather_values(collective, _finish(addresses, serving) if collective.worker == 0 else "")
        )
    except BaseException:
        if agent is not None:
            agent.close()
        raise
    assert agent is not None
    return agent, addresses


def _raise_first(problems: list[str], cause: Exception | None = None) -> None:
    for worker, problem in enumerate(problems):
        if problem:
            text = f"samples of worker {worker} cannot migrate: {problem}"
            raise EvenstepError(text) from cause


def _check_reachable(hosts: list[str], addresses: list[str], bound: list[str]) -> None:
    if len(set(hosts)) == 1:
        return
    for worker, (address, numbers) in enumerate(zip(addresses, bound, strict=True)):
        host, _ = parse_address(numbers)
        # 0.0.0.0 listens everywhere, but is no address by which others find this machine.
        if is_loopback(host) or ip_address(host).is_unspecified:
            meaning = "" if numbers == address else f", which is {numbers} there,"
            raise InvalidSetting(
                "where workers are on several machines, agents must listen on an address that the "
                f"others reach, got {address}{meaning} for worker {worker}: "
                "serving=Serving(listen=...)"
            )


def _finish(addresses: list[str], serving: Serving) -> str:
    """Finish the hand-overs of an earlier training; return the problem, if there is one."""
    from evenstep.partitions.agents.driver import Migration
    from evenstep.partitions.agents.migration_run import remote_agents

    try:
        settings = serving.migration(addresses, (), seed=0)
        patience = min(settings.patience, _PATIENCE)
        agents = remote_agents(addresses, settings.token_file, settings.tls_ca, patience)
        with Migration(agents, patience) as manager:
            unfinished = [task.reason for task in manager.finish() if not task.final]
            in_transit = manager.in_transit
    except (EvenstepError, OSError) as error:
        return str(error)
    if in_transit:
        # No worker would read them, and they might arrive during the training.
        unfinished.append(
            f"samples must be in a partition before training begins, got {', '.join(in_transit)} "
            "on their way (migrate with the partitions of all, or with --lost, ends that)"
        )
    return "; ".join(unfinished)
