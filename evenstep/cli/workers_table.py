"""The table of workers: batch size, batch processing time, and a bar of working and waiting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from evenstep.core.arrays import Floats, Ints

_BAR = 24
_SHOWN_WORKERS = 32


def workers_table(
    title: str, workers: Sequence[str], sizes: Ints, times: Floats, iteration_time: float
) -> Table:
    """Make the table; of very many workers, it shows the slowest ones."""
    table = Table(title=Text(title), title_justify="left")
    table.add_column("worker")
    table.add_column("batch size", justify="right")
    table.add_column("time", justify="right")
    table.add_column("working / waiting", no_wrap=True)
    scale, unit, digits = (1e3, "ms", 1) if iteration_time < 1 else (1.0, "s", 3)
    shown = np.sort(np.argsort(-times, kind="stable")[:_SHOWN_WORKERS])
    for i in shown:
        table.add_row(
            Text(workers[i]),
            str(sizes[i]),
            "-" if np.isnan(times[i]) else f"{scale * times[i]:.{digits}f} {unit}",
            _bar(float(times[i]), iteration_time),
        )
    left_out = len(times) - len(shown)
    if left_out:
        table.caption = f"and {left_out} faster workers"
    return table


def _bar(time: float, iteration_time: float) -> Text:
    share = time / iteration_time if iteration_time > 0 and not np.isnan(time) else 0.0
    working = round(_BAR * min(share, 1.0))
    return Text.assemble(("█" * working, "green"), ("░" * (_BAR - working), "dim"))
