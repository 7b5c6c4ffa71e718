"""Runs the examples, and compares those that have a stock form with it."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def unified_diff(names: tuple[str, str]) -> list[str]:
    """Return the lines of a diff from the stock form of an example to the balanced one."""
    stock, balanced = ((ROOT / name).read_text().splitlines(keepends=True) for name in names)
    before, after = names
    return list(difflib.unified_diff(stock, balanced, before, after, n=1))


def run_on_two_workers(
    example: str, *arguments: str, tries: int = 1, result: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run an example with torchrun.

    A stock script may abort at its exit, when gloo's threads are late: a known trap of PyTorch. It
    is tried again, unless it has printed its `result`, a pattern, before.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--local-addr", "127.0.0.1", "--nproc-per-node", "2", example, *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=170,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    if done.returncode and "SIGABRT" in done.stderr:
        if result is not None and re.search(result, done.stdout, re.MULTILINE):
            return done
        if tries > 1:
            return run_on_two_workers(example, *arguments, tries=tries - 1, result=result)
    assert done.returncode == 0, done.stderr
    return done
