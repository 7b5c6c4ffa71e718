"""The console for results: as wide as the terminal, or wide enough where there is none."""

from __future__ import annotations

import sys

from rich.console import Console


def console() -> Console:
    """Return a console for the result; plain and wide where it is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=100, file=sys.stdout)
