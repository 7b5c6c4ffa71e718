"""How `evenstep advise` looks: a table of the workers, and one of total batches."""

from __future__ import annotations

import math

import numpy as np
from rich.table import Table
from rich.text import Text

from evenstep.advice import Advice
from evenstep.advice.words import time_of
from evenstep.cli.plain_console import console
from evenstep.runlog.picture import readable

_SHOWN = 40
"""Workers in the table: of more, the slowest ones."""


def print_tables(advice: Advice) -> None:
    """Print what each worker would do, and what other total batches would bring."""
    console().print(_workers(advice))
    console().print(_totals(advice))


def _workers(advice: Advice) -> Table:
    source = "" if advice.source == "measured" else f" ({advice.source})"
    table = Table(title=Text(f"optimum batch sizes{source}"), title_justify="left")
    table.add_column("worker")
    for column in ("plain size", "time", "optimum size", "time", "overhead", "job without it"):
        table.add_column(column, justify="right")
    shown = np.sort(np.argsort(advice.speeds, kind="stable")[:_SHOWN])
    for i in shown.tolist():
        table.add_row(
            Text(readable(advice.workers[i], 40)),
            str(advice.plain_sizes[i]),
            time_of(advice, advice.plain_times[i]),
            str(advice.batch_sizes[i]),
            time_of(advice, advice.times[i]),
            _overhead(advice, i),
            _without(advice, i),
        )
    left_out = len(advice.workers) - len(shown)
    if left_out:
        table.caption = f"and {left_out} faster workers"
    return table


def _overhead(advice: Advice, worker: int) -> str:
    if advice.overheads is None or advice.told is None:
        return "-"
    if not advice.told[worker]:
        return "none assumed"
    return time_of(advice, advice.overheads[worker])


def _without(advice: Advice, worker: int) -> str:
    time = advice.times_without[worker]
    return "-" if math.isnan(time) else f"{time / max(advice.times) - 1:+.1%}"


def _totals(advice: Advice) -> Table:
    table = Table(title="total batches, balanced", title_justify="left")
    table.add_column("total", justify="right")
    table.add_column("iteration", justify="right")
    table.add_column("samples" if advice.relative else "samples/s", justify="right")
    for total in advice.totals:
        now = " (now)" if total.total == advice.total else ""
        speed = f"{total.speed:.4g}"
        table.add_row(f"{total.total}{now}", time_of(advice, total.iteration_time), speed)
    return table
