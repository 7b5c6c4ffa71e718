"""Runs an agent or a migration as a process of its own, for another program.

    python -m evenstep.partitions.agents serve '{"folder": "data/worker-0", "listen": "node:0"}'
    python -m evenstep.partitions.agents migrate '{"agents": [...], "batch_sizes": [64, 192]}'

The settings are those of `AgentSettings` and `MigrationSettings`. The process writes JSON objects,
one a line, to standard output:

    {"listening": {"partition": NAME, "address": "HOST:PORT"}}  an agent that can be called now
    {"outcome": {...}}                                          the MigrationOutcome, at the end
    {"error": TEXT}                                             what went wrong; exit code 1

It ends when its standard input ends, a pipe of the program that started it: so it ends with that
program, however that ends. Log lines go to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from evenstep.errors import EvenstepError, InvalidSetting
from evenstep.partitions.agents.process_limits import terminate_at_eof
from evenstep.partitions.agents.settings import AgentSettings, MigrationSettings
from evenstep.partitions.handover.task import MigrationOutcome


def main(arguments: Sequence[str]) -> int:
    """Run an agent or a migration, and return the exit code."""
    terminate_at_eof()
    try:
        _run(parse_settings(arguments))
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("thriftpy2"):
            raise
        return _fail("thriftpy2 is not installed; pip install 'evenstep[manager]'")
    except (EvenstepError, OSError) as error:
        return _fail(str(error))
    return 0


def parse_settings(arguments: Sequence[str]) -> AgentSettings | MigrationSettings:
    """Return the settings of an agent or a migration.

    >>> parse_settings(["serve", '{"folder": "data/worker-0"}']).folder
    'data/worker-0'
    """
    kinds: dict[str, type[AgentSettings] | type[MigrationSettings]]
    kinds = {"serve": AgentSettings, "migrate": MigrationSettings}
    try:
        kind, settings = arguments
        return kinds[kind](**json.loads(settings))
    except EvenstepError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidSetting(
            f"arguments must be serve or migrate, and settings as JSON, got {error}"
        ) from error


def _run(settings: AgentSettings | MigrationSettings) -> None:
    # Thrift is loaded here, so that its absence can be reported.
    from evenstep.manager.log_format import set_up
    from evenstep.partitions.agents.agent_server import run_agent
    from evenstep.partitions.agents.migration_run import migrate

    set_up("text")
    if isinstance(settings, AgentSettings):
        run_agent(settings, _write_listening)
    else:
        _write(outcome=asdict(MigrationOutcome.of(migrate(settings).tasks)))


def _write_listening(partition: str, address: str) -> None:
    _write(listening={"partition": partition, "address": address})


def _fail(text: str) -> int:
    _write(error=text)
    return 1


def _write(**line: Any) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
