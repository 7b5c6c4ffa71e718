"""Output on the terminal: a bar while experiments run, tables and claims at the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from reproduction.experiment import Experiment
from reproduction.experiment import Progress as Tell
from reproduction.record import Record
from reproduction.result import KINDS
from reproduction.wording import cell, duration, kinds_in_words, reason, tally

_WIDTH = 160
"""Of the result, where there is no terminal."""


class Display:
    """Shows progress on a terminal, and everywhere a line for each experiment that has ended."""

    def __init__(self, bars: Progress, num_experiments: int, quiet: bool) -> None:
        self._bars, self._quiet = bars, quiet
        self._all = bars.add_task("experiments", total=num_experiments)
        self._one = bars.add_task("", total=1.0)

    def begin(self, name: str) -> Tell:
        """Return the progress function of an experiment."""
        self._bars.reset(self._one, description=name)

        def tell(share: float, what: str) -> None:
            description = f"{name}: {what}" if what else name
            self._bars.update(self._one, completed=share, description=description)

        return tell

    def end(self, record: Record, was_finished: bool) -> None:
        """Show that an experiment has ended, or that its result was kept already."""
        self._bars.advance(self._all)
        if not self._quiet:
            said = reason(record.result) or tally(record)
            took = "finished before" if was_finished else duration(record)
            line = Text(f"{record.name}: {said}, {took}")
            self._bars.console.print(line, soft_wrap=True)


@contextmanager
def displayed(num_experiments: int, quiet: bool) -> Iterator[Display]:
    """Show progress on a terminal, and what has ended; nothing if it is to be quiet."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    ) as bars:
        yield Display(bars, num_experiments, quiet)


def print_list(experiments: Sequence[Experiment], as_json: bool) -> None:
    """Print which experiments there are."""
    names = ("name", "title", "of_paper", "kinds")
    rows = [{name: getattr(experiment, name) for name in names} for experiment in experiments]
    if as_json:
        json.dump(rows, sys.stdout, indent=2)
        print()
        return
    table = Table()
    for head in ("name", "what", "of the paper", "its figures can be"):
        table.add_column(head)
    for row in rows:
        table.add_row(row["name"], row["title"], row["of_paper"], kinds_in_words(row["kinds"]))
    _console().print(table)


def print_record(record: Record) -> None:
    """Print the tables and claims of an experiment."""
    console, result = _console(), record.result
    console.print(Text(f"\n{record.name}: {record.title} ({record.of_paper})", style="bold"))
    if result.is_empty:
        console.print(Text(reason(result)))
        return
    for table in result.tables:
        shown = Table(title=Text(f"{table.title} ({KINDS[table.kind]})"), title_justify="left")
        for i, column in enumerate(table.columns):
            shown.add_column(Text(column), justify="right" if i else "left")
        for row in table.rows:
            shown.add_row(*(Text(cell(value)) for value in row.values()))
        console.print(shown)
    for claim in result.claims:
        why = f" Why: {claim.why}." if claim.why else ""
        holds = "holds" if claim.holds else "DOES NOT HOLD"
        console.print(Text(f"{holds} ({claim.of}): {claim.text}{why}"))
    for difference in result.differences:
        console.print(Text(f"differs: {difference}"))


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH, file=sys.stdout)
