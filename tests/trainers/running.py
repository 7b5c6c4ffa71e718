"""Runs a script in a worker process of the tests, stock or under `evenstep run`."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from evenstep.run.script import run_script
from evenstep.run.watch import Watch

SCRIPTS = Path(__file__).parent / "scripts"


def run(script: str, arguments: list[str], settings: dict[str, Any] | None) -> dict[str, Any]:
    """Run a script as it would be in its own process, and return what became of it.

    Without settings nothing of Evenstep runs. The process group is that of the job.
    """
    said = io.StringIO()
    watch = None if settings is None else Watch(settings)
    sizes: list[tuple[int, ...]] = []
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.object(sys, "argv", []))
        enter(mock.patch.object(sys, "path", list(sys.path)))
        enter(mock.patch.object(sys, "excepthook", sys.excepthook))
        enter(mock.patch.object(dist, "init_process_group", lambda *a, **k: None))
        enter(mock.patch.object(dist, "destroy_process_group", lambda *a, **k: None))
        enter(mock.patch.object(dist.distributed_c10d, "destroy_process_group", lambda: None))
        enter(contextlib.redirect_stderr(said))
        enter(contextlib.redirect_stdout(io.StringIO()))
        if watch is not None:
            enter(watch)
        run_script(str(SCRIPTS / script), arguments)
        if watch is not None and watch.balancer is not None:
            sizes.append(tuple(watch.balancer.newest_plan.sizes.tolist()))
    return {"said": said.getvalue(), "sizes": sizes}


def state(path: str | Path) -> torch.Tensor:
    """Return all that a script has saved, as one vector."""
    saved = torch.load(path)
    return torch.cat([saved[name].flatten().double() for name in sorted(saved)])
