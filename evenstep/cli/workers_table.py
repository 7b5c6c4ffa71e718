"""The table of workers: batch size, batch processing time, and a bar of working and waiting."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evenstep.core import Floats, Ints

_BAR = 24
_SHOWN_WORKERS = 32


def workers_table(
    title: str,
    workers: Sequence[str],
    sizes: Ints,
    times: Floats,
    iteration_time: float,
    waiting: Floats | None = None,
    cpu: Floats | None = None,
    most: int = _SHOWN_WORKERS,
    slowest_first: bool = False,
) -> Table:
    """Make the table; with more than `most` workers, it shows the slowest ones.

    `waiting` and `cpu` have columns if they are known.
    """
    table = Table(title=Text(title), title_justify="left")
    table.add_column("worker", overflow="fold")
    table.add_column("batch size", justify="right")
    table.add_column("time", justify="right")
    if waiting is not None:
        table.add_column("waiting", justify="right")
    if cpu is not None:
        table.add_column("CPU", justify="right")
    table.add_column("working / waiting", no_wrap=True)
    scale, unit, digits = (1e3, "ms", 1) if iteration_time < 1 else (1.0, "s", 3)

    def time(seconds: float) -> str:
        return "-" if np.isnan(seconds) else f"{scale * seconds:.{digits}f} {unit}"

    shown = np.argsort(-times, kind="stable")[: min(most, _SHOWN_WORKERS)]
    if len(shown) == len(times) or not slowest_first:
        shown = np.sort(shown)
    for i in shown:
        cells = [time(times[i])]
        if waiting is not None:
            cells.append(time(waiting[i]))
        if cpu is not None:
            cells.append("-" if np.isnan(cpu[i]) else f"{cpu[i]:.0%}")
        bar = _bar(float(times[i]), iteration_time)
        table.add_row(Text(workers[i]), str(sizes[i]), *cells, bar)
    left_out = len(times) - len(shown)
    if left_out:
        table.caption = f"and {left_out} faster workers"
    return table


def _bar(time: float, iteration_time: float) -> Text:
    share = time / iteration_time if iteration_time > 0 and not np.isnan(time) else 0.0
    working = round(_BAR * min(share, 1.0))
    return Text.assemble(("█" * working, "green"), ("░" * (_BAR - working), "dim"))


def console() -> Console:
    """Return a console for the result; 100 columns wide if it is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=100, file=sys.stdout)
