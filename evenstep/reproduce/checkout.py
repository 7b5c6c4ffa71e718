"""Which commit of Evenstep runs here, where that is known."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

_SOURCE = Path(__file__).parents[2]


@cache
def commit_of(source: Path = _SOURCE) -> str:
    """Return what git calls the commit of a source checkout; nothing where there is none."""
    if not (source / ".git").exists():
        return ""
    # Whoever asks changes nothing, not even git's index.
    ask = ["git", "--no-optional-locks", "-C", str(source), "describe", "--always", "--dirty"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
