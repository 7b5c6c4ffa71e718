"""How the benchmarks show their figures: a table, or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track
from rich.table import Table

Row = Mapping[str, Any]
T = TypeVar("T")


def progress(work: Sequence[T], what: str) -> Iterator[T]:
    """Go through the work with a progress bar on a terminal, and quietly elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return iter(work)
    return iter(track(work, description=what, console=console, transient=True))


def show(title: str, rows: Iterable[Row], as_json: bool) -> None:
    """Print rows of the same keys as a table, or as one JSON object per table."""
    rows = list(rows)
    if as_json:
        json.dump({"title": title, "rows": rows}, sys.stdout)
        print()
        return
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if i else "left")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "never"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
