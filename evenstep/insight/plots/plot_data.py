"""The numbers of a plot: the data of its panels, thinned and in a readable unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evenstep.core import Floats, Ints
from evenstep.core.arrays import mean, median
from evenstep.errors import InvalidSetting
from evenstep.insight.thinning import (
    group_means,
    group_medians,
    group_size,
    quantiles,
    running_mean,
    running_median,
)  # fmt: skip
from evenstep.runlog import Event, RunLog
from evenstep.runlog.iteration_row import waiting_of

FEW = 8
"""Up to this number of workers, each has a line; of more, bands, straggler and leader are shown."""

BEGINNING = 40
"""Iterations of a long run that are shown enlarged: most of the balancing happens there."""

LONG = 3 * BEGINNING
"""A run with more iterations is long."""

WINDOWS = 60
"""Running medians along the width of a long run."""


@dataclass(frozen=True, eq=False)
class Lane:
    """A worker that has a line of its own."""

    column: int
    label: str


@dataclass(frozen=True, eq=False)
class Numbers:
    """All iterations and workers of a run log, in the units of the plot."""

    iterations: Ints
    sizes: Floats
    times: Floats
    waiting: Floats
    iteration_times: Floats
    series: Mapping[str, Floats]
    """Iteration times to compare with."""
    lanes: tuple[Lane, ...]
    """All workers if they are few, otherwise the straggler and the leader."""
    unit: str
    """`s` or `ms`."""

    @classmethod
    def of(
        cls, run_log: RunLog, series: Mapping[str, Floats], straggler: str | None = None
    ) -> Numbers:
        """Take the numbers of a run log; the `straggler` is labelled, if it is known."""
        if run_log.num_iterations == 0:
            raise InvalidSetting("a plot needs at least 1 iteration, got a run log with none")
        iteration_times = run_log.iteration_times
        is_short = float(median(iteration_times, axis=0)) < 1
        scale, unit = (1000.0, "ms") if is_short else (1.0, "s")
        times = run_log.matrix("times")
        return cls(
            iterations=run_log.iterations,
            sizes=run_log.matrix("batch_sizes"),
            times=scale * times,
            waiting=scale * waiting_of(run_log.matrix("waiting"), times),
            iteration_times=scale * iteration_times,
            series={readable(label): scale * values for label, values in series.items()},
            lanes=_lanes(run_log, straggler),
            unit=unit,
        )

    @property
    def num_workers(self) -> int:
        return int(self.sizes.shape[1])


@dataclass(frozen=True, eq=False)
class Picture:
    """A column of the plot: points along the iterations; matrices are (points, workers)."""

    iterations: Ints
    at: Floats
    """The position of each point, in iterations."""
    every: int
    """Iterations per point: it shows their median."""
    window: int
    """Points in a running median; 1 without smoothing."""
    sizes: Floats
    times: Floats
    worked: Floats
    """Mean t of the workers, as a running mean."""
    waited: Floats
    """Mean waiting of the workers, as a running mean."""
    iteration_times: Floats
    series: Mapping[str, Floats]

    @classmethod
    def of(cls, numbers: Numbers, first: int | None = None) -> Picture:
        """Make the picture of the first iterations, or of all, smoothed if they are many."""
        rows = slice(first)
        iterations = numbers.iterations[rows]
        times, waiting = numbers.times[rows], numbers.waiting[rows]
        length = len(iterations)
        every = group_size(length)
        window = length // every // WINDOWS + 1 if length > LONG else 1
        # A worker without a batch has no time, and waits during the whole iteration.
        worked = np.where(np.isnan(times) & ~np.isnan(waiting), 0.0, times)
        return cls(
            iterations=iterations,
            at=group_means(iterations.astype(np.float64), every),
            every=every,
            window=window,
            sizes=group_medians(numbers.sizes[rows], every),
            times=group_medians(times, every),
            worked=running_mean(group_means(mean(worked, axis=1), every), window),
            waited=running_mean(group_means(mean(waiting, axis=1), every), window),
            iteration_times=group_medians(numbers.iteration_times[rows], every),
            series={
                label: group_medians(values[rows], every)
                for label, values in numbers.series.items()
            },
        )

    def smooth(self, values: Floats) -> Floats:
        """Return the running median of a quantity."""
        return running_median(values, self.window)

    def bands(self, matrix: Floats) -> list[Floats]:
        """Return the 5, 25, 50, 75 and 95 % quantiles of the workers, as running medians."""
        return [self.smooth(band) for band in quantiles(matrix)]


def readable(name: str, length: int = 24) -> str:
    """Return a name that can be drawn: printable, and not too long.

    >>> readable("gpu-0\\n" + "x" * 30)
    'gpu-0?xxxxxxxxxxxxxxxxx…'
    """
    text = "".join(letter if letter.isprintable() else "?" for letter in name[: length + 1])
    if text.startswith("_"):
        # matplotlib leaves such labels out of a legend; a hair space keeps them in.
        text = "\u200a" + text
    return text if len(text) <= length else text[: length - 1] + "…"


def _lanes(run_log: RunLog, straggler: str | None) -> tuple[Lane, ...]:
    workers = run_log.workers
    if len(workers) <= FEW:
        return tuple(
            Lane(i, f"straggler: {readable(name)}" if name == straggler else readable(name))
            for i, name in enumerate(workers)
        )
    speeds = median(run_log.matrix("speeds"), axis=0)
    if np.isnan(speeds).all():
        return ()
    slowest, leader = int(np.nanargmin(speeds)), int(np.nanargmax(speeds))
    if straggler in workers:
        slowest = list(workers).index(straggler)
    return (
        Lane(slowest, f"straggler: {readable(workers[slowest])}"),
        Lane(leader, f"leader: {readable(workers[leader])}"),
    )


def describe(event: Event) -> str:
    """Return an event in a few words, or an empty string if it gets no label.

    >>> describe(Event("limit", 7, worker="w3", cap=64))
    'w3 at most 64'
    """
    worker = readable(event.worker or "", 16)
    words = {
        "phase": event.phase,
        "advice": f"advice: {event.advice} {worker}",
        "join": f"{worker} joins",
        "leave": f"{worker} leaves",
        "limit": f"{worker} at most {event.cap}",
        "note": event.text,
    }
    return readable(words.get(event.kind) or "", 32)


def event_labels(run_log: RunLog) -> dict[int, str]:
    """Return the labels of events by iteration; several events of an iteration share one."""
    events: dict[int, list[str]] = {}
    for event in run_log.events:
        if words := describe(event):
            events.setdefault(event.iteration, []).append(words)
    return {
        iteration: words[0] if len(words) == 1 else f"{words[0]} + {len(words) - 1} more"
        for iteration, words in sorted(events.items())
    }
