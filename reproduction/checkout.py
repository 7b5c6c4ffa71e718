"""The checkout that the experiments run from: its commit, and the environment of processes."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

_SOURCE = Path(__file__).parents[1]


@cache
def commit_of(source: Path = _SOURCE) -> str:
    """Return git's description of the checked-out commit; empty outside of a checkout."""
    if not (source / ".git").exists():
        return ""
    # The query must change nothing, not even git's index.
    ask = ["git", "--no-optional-locks", "-C", str(source), "describe", "--always", "--dirty"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()


def environment(**settings: str) -> dict[str, str]:
    """Return this process's environment with settings, for a process that runs a module of ours.

    That process finds this checkout, whichever folder it is started in.
    """
    path = [str(_SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **settings}
