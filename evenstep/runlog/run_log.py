"""A run log in memory: the header, the rows as matrices, and the events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import Floats, Ints
from evenstep.core.plan import html_table
from evenstep.runlog.event import Event
from evenstep.runlog.header import Header
from evenstep.runlog.iteration_row import QUANTITIES, IterationRow, speeds_of, waiting_of


@dataclass(frozen=True, eq=False)
class Segment:
    """The iterations between two changes of membership: matrices of (iterations, workers).

    Unknown values are NaN. A matrix of unknown values only takes no memory and is read-only.
    """

    workers: tuple[str, ...]
    iterations: Ints
    """k of each row."""
    plans: Ints
    """Number of the plan in use in each row."""
    starts: Floats
    """When each iteration began, in seconds since the run began."""
    batch_sizes: Ints
    """x."""
    times: Floats
    """t, in seconds."""
    waiting: Floats
    """Seconds blocked at the barrier."""
    predicted_speeds: Floats
    """v as predicted, in samples per second."""
    cpu: Floats
    """c at the start of the iteration."""
    memory: Floats
    """m at the start of the iteration."""
    device_memory: Floats
    """Share of the device's memory in use at its peak."""
    caps: Ints
    """x^o, in samples; UNLIMITED where there is none."""

    def __repr__(self) -> str:
        span = f"{len(self.iterations)} iterations"
        if len(self.iterations):
            span = f"iterations {self.iterations[0]} to {self.iterations[-1]}"
        return _printable(f"Segment({span}, {len(self.workers)} workers: {_named(self.workers)})")

    @property
    def speeds(self) -> Floats:
        """``v = x / t``: the actual speeds, in samples per second."""
        return speeds_of(self.batch_sizes, self.times)

    @property
    def iteration_times(self) -> Floats:
        """Seconds until the last worker finished each iteration: the largest t plus waiting.

        Where waiting is unknown, it is the largest t.
        """
        finished = self.times + np.where(np.isnan(self.waiting), 0.0, self.waiting)
        longest = np.fmax.reduce(finished, axis=1, initial=-np.inf)
        return np.where(np.isneginf(longest), np.nan, longest)

    def rows(self) -> Iterator[IterationRow]:
        """Yield the iterations one by one."""
        for k in range(len(self.iterations)):
            quantities = {name: getattr(self, name)[k] for name in QUANTITIES}
            yield IterationRow(
                int(self.iterations[k]), int(self.plans[k]), float(self.starts[k]), **quantities
            )

    def part(self, rows: slice) -> Segment:
        """Return some of the rows."""
        arrays = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "workers"}
        return replace(self, **arrays)


@dataclass(frozen=True, eq=False)
class RunLog:
    """The whole content of a run log."""

    header: Header
    segments: tuple[Segment, ...]
    """The rows, with a new segment at each change of the workers; none without rows."""
    events: tuple[Event, ...]
    complete: bool
    """False if the last line is incomplete; it is left out here."""
    num_skipped: int = 0
    """Iterations of the file that were skipped."""

    def __repr__(self) -> str:
        head = self.header
        state = "ended" if self.ended else "not ended"
        line = (
            f"RunLog({head.job!r}, {head.source}: {len(self.workers)} workers, "
            f"{self.num_iterations} iterations, total {head.total}, {head.policy}, {state})"
        )
        return _printable(line)

    def _repr_html_(self) -> str:
        """Return a table of the workers for notebooks, and the plot if matplotlib is installed."""
        # By their names: estimates and plots are layers above, which only a notebook needs.
        estimates = import_module("evenstep.estimates").estimates_of(self)
        if estimates is None:
            return f"<p>{escape(repr(self))}</p>"
        slow = "" if estimates.straggler is None else _printable(estimates.straggler.worker)
        words = import_module("evenstep.estimates.words").headline(estimates, slow)
        title = f"{self!r}\n{words} ({estimates.about})"
        return html_table(title, _HEAD, self._table(estimates.first)) + self._svg()

    def _table(self, first: int) -> list[tuple[str, int, str, str]]:
        """Return each worker's newest size, and medians of its time and waiting."""
        last = self.segments[-1]
        some = last.part(slice(int(np.searchsorted(last.iterations, first)), None))
        waiting = waiting_of(some.waiting, some.times)
        columns = [[_median(column) for column in matrix.T] for matrix in (some.times, waiting)]
        sizes = last.batch_sizes[-1].tolist()
        return [
            (_printable(name), size, _seconds(time), _seconds(wait))
            for name, size, time, wait in zip(last.workers, sizes, *columns, strict=True)
        ]

    def _svg(self) -> str:
        plot = import_module("evenstep.insight.plots.plot").plot
        with TemporaryDirectory() as folder:
            path = Path(folder, "run.svg")
            try:
                plot(self, path)
            except ModuleNotFoundError:
                return ""
            text = path.read_text(encoding="utf-8")
        # As wide as the cell, if that is narrower.
        style = 'style="max-width:100%;height:auto"'
        return f"<svg {style}{text[text.index('<svg') + 4 :]}"

    @property
    def parts(self) -> list[tuple[Segment, int]]:
        """The segments, cut where the total changes, each with its total: that of its plans."""
        plans = {e.plan: sum(e.batch_sizes or ()) for e in self.events_of("plan")}
        if set(plans.values()) <= {self.header.total}:
            return [(segment, self.header.total) for segment in self.segments]
        first = self.header.total
        return [part for segment in self.segments for part in _by_total(segment, plans, first)]

    @property
    def ended(self) -> bool:
        """Whether the log has the event that ends a run."""
        return any(event.kind == "end" for event in self.events)

    @property
    def num_iterations(self) -> int:
        return sum(len(segment.iterations) for segment in self.segments)

    @property
    def workers(self) -> tuple[str, ...]:
        """All workers that ever took part, in the order in which they joined."""
        names = [self.header.workers, *(segment.workers for segment in self.segments)]
        return tuple(dict.fromkeys(name for group in names for name in group))

    @property
    def iterations(self) -> Ints:
        return _join([segment.iterations for segment in self.segments], np.int64)

    @property
    def starts(self) -> Floats:
        return _join([segment.starts for segment in self.segments])

    @property
    def iteration_times(self) -> Floats:
        return _join([segment.iteration_times for segment in self.segments])

    def matrix(self, quantity: str) -> Floats:
        """Return one quantity of all `workers` over all iterations, NaN while a worker was absent.

        `quantity` is the name of a matrix of `Segment`, such as `times` or `speeds`.
        """
        workers = self.workers
        position = {name: i for i, name in enumerate(workers)}
        matrix = np.full((self.num_iterations, len(workers)), np.nan)
        row = 0
        for segment in self.segments:
            columns = [position[name] for name in segment.workers]
            below = row + len(segment.iterations)
            matrix[row:below, columns] = getattr(segment, quantity)
            row = below
        return matrix

    def events_of(self, *kinds: str) -> list[Event]:
        """Return the events of these kinds, in their order."""
        return [event for event in self.events if event.kind in kinds]


_HEAD = "worker", "batch size", "time", "waiting"


def _median(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else np.nan


def _seconds(seconds: float) -> str:
    if np.isnan(seconds):
        return "-"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _printable(text: str) -> str:
    """Return a text of a log without characters that a terminal or a browser would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _named(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) <= 8 else [*names[:7], f"and {len(names) - 7} more"])


def _by_total(
    segment: Segment, totals: Mapping[int | None, int], first: int
) -> list[tuple[Segment, int]]:
    """Cut a segment where the total of its plans changes; an unknown plan has that before it."""
    each = [first]
    for number in segment.plans.tolist():
        each.append(totals.get(number, each[-1]))
    del each[0]
    cuts = [row for row in range(1, len(each)) if each[row] != each[row - 1]]
    starts, ends = [0, *cuts], [*cuts, len(each)]
    return [
        (segment.part(slice(start, end)), each[start])
        for start, end in zip(starts, ends, strict=True)
        if end > start
    ]


def _join(arrays: Sequence[NDArray[Any]], dtype: type = np.float64) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)
