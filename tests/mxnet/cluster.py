"""A real job on this machine that runs the scenarios: MXNet's own way to train together."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from evenstep.errors import EvenstepError
from evenstep.mxnet.launch import LocalJob

NUM_WORKERS = 2


def run(folder: Path, timeout: float, **arguments: Any) -> list[dict[str, Any]]:
    """Run `tests/mxnet/scenarios.py` on all workers, and return what each of them returns."""
    given = json.dumps({"folder": str(folder), **arguments})
    command = [sys.executable, "-m", "tests.mxnet.scenarios", given]
    log = folder / "log"
    with log.open("wb") as output:
        job = LocalJob(command, NUM_WORKERS, output=output)
        try:
            job.wait(timeout)
        except EvenstepError as error:
            raise AssertionError(f"{error}\n{log.read_text()}") from error
    # Servers continue without their optimizer if they cannot load it.
    assert "Exception ignored" not in log.read_text(), log.read_text()
    files = [folder / f"worker-{worker}.json" for worker in range(NUM_WORKERS)]
    return [json.loads(file.read_text()) for file in files]
