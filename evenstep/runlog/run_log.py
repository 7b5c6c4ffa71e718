"""A run log in memory: the header, the rows as matrices, and the events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import Floats, Ints
from evenstep.runlog.event import Event
from evenstep.runlog.header import Header
from evenstep.runlog.iteration_row import QUANTITIES, IterationRow, speeds_of


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

    @property
    def parts(self) -> list[tuple[Segment, int]]:
        """The segments, cut where the total changes, each with its total: that of its plans."""
        plans = {e.plan: sum(e.batch_sizes or ()) for e in self.events_of("plan")}
        if len(set(plans.values())) <= 1:
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
