"""Runs a script in a worker process of the tests, stock or under `evenstep run`."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from evenstep.run.script import run_script
from evenstep.run.watch import Watch

SCRIPTS = Path(__file__).parent / "scripts"


def run(script: str, arguments: list[str], settings: dict[str, Any] | None) -> str:
    """Run a script as it would run in its own process, and return what was written to stderr.

    Without settings nothing of Evenstep runs. The process group is that of the job.
    """
    said = io.StringIO()
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.object(sys, "argv", []))
        enter(mock.patch.object(sys, "path", list(sys.path)))
        enter(mock.patch.object(sys, "excepthook", sys.excepthook))
        for name in ("init_process_group", "destroy_process_group"):
            enter(mock.patch.object(dist, name, lambda *args, **options: None))
        enter(contextlib.redirect_stderr(said))
        enter(contextlib.redirect_stdout(io.StringIO()))
        if settings is not None:
            enter(Watch(settings))
        stack.callback(sys.modules.__setitem__, "__main__", sys.modules["__main__"])
        run_script(str(SCRIPTS / script), arguments)
    return said.getvalue()


def saved(path: Path) -> torch.Tensor:
    """Return all that a script has saved, as one vector."""
    state = torch.load(path)
    return torch.cat([state[name].flatten().double() for name in sorted(state)])


def sizes_in(log: Path) -> list[list[int]]:
    """Return the batch sizes of all iterations in a run log."""
    lines = map(json.loads, log.read_text().splitlines())
    return [line["batch_sizes"] for line in lines if "batch_sizes" in line and "event" not in line]
