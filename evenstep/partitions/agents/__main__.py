"""Runs an agent or a migration as a process of its own, for another program.

The first line of standard input is a JSON object: {"serve": AgentSettings} or {"migrate":
MigrationSettings}. The process writes JSON objects, one a line, to standard output:

    {"listening": {"partition": NAME, "address": HOST:PORT}}    an agent that can be called now
    {"outcome": MigrationOutcome}                               a migration that has ended
    {"error": TEXT}                                             what went wrong; exit code 1

Standard input stays open: the process ends when it ends, as when the program that started this is
gone. Log lines go to standard error.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from evenstep.errors import EvenstepError, InvalidSetting
from evenstep.partitions.agents.process_limits import terminate_at_eof
from evenstep.partitions.agents.settings import AgentSettings, MigrationSettings
from evenstep.partitions.handover.task import MigrationOutcome


def main() -> int:
    """Carry out the request on standard input, and return the exit code."""
    line = sys.stdin.buffer.readline()
    terminate_at_eof()
    try:
        _run(line)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("thriftpy2"):
            raise
        _write(error="thriftpy2 is not installed; pip install 'evenstep[manager]'")
        return 1
    except (EvenstepError, OSError) as error:
        _write(error=str(error))
        return 1
    return 0


def _run(line: bytes) -> None:
    # Thrift is loaded here, so that its absence can be reported.
    from evenstep.manager.logs import set_up
    from evenstep.partitions.agents.agent_server import run_agent
    from evenstep.partitions.agents.migration_run import migrate

    settings = parse_request(line)
    set_up("text")
    if isinstance(settings, AgentSettings):
        run_agent(settings, _write_listening)
    else:
        result = migrate(settings)
        _write(outcome=asdict(MigrationOutcome.of(result.tasks)))


def parse_request(line: bytes) -> AgentSettings | MigrationSettings:
    """Return the settings that a request has.

    >>> parse_request(b'{"serve": {"folder": "data/worker-0"}}').folder
    'data/worker-0'
    """
    kinds = {"serve": AgentSettings, "migrate": MigrationSettings}
    try:
        ((kind, settings),) = json.loads(line).items()
        return kinds[kind](**settings)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidSetting(
            f"a request must be serve or migrate with their settings, got {error}"
        ) from error


def _write_listening(partition: str, address: str) -> None:
    _write(listening={"partition": partition, "address": address})


def _write(**line: Any) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
