"""The report as a page: one HTML file that needs nothing else, neither network nor scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import ArrayLike

from evenstep.core.arrays import Floats, Ints
from evenstep.runlog.document import document
from evenstep.runlog.estimates import Estimates
from evenstep.runlog.event_table import event_table
from evenstep.runlog.figures import Figures, Phase
from evenstep.runlog.picture import readable
from evenstep.runlog.pictures import pictures
from evenstep.runlog.run_log import RunLog
from evenstep.runlog.words import SOURCE_MEANS, duration, sentences


def page(
    figures: Figures,
    run_log: RunLog,
    plain: RunLog | None = None,
    estimates: Estimates | None = None,
) -> str:
    """Return the report of a run; everything that comes from a log is escaped."""
    title = f"{figures.source.capitalize()} run: {readable(figures.job, 60)}"
    words = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences(figures))
    body = (
        f"<h1>{escape(title)}</h1>"
        f'<p class="source">{escape(SOURCE_MEANS[figures.source])}</p>'
        f'<p class="pale">{escape(_details(figures))}</p>\n'
        f'<div class="tiles">{_tiles(figures)}</div>\n{words}\n'
        f"{pictures(run_log, series_of(figures, run_log, plain, estimates))}\n"
        f'<h2>Workers</h2><div class="wide">{_table(figures)}</div>\n'
        f'<p class="pale">{escape(_REMARK)}</p>\n'
        f'<h2>Events</h2><div class="wide">{event_table(run_log)}</div>'
    )
    return document(title, body)


_REMARK = (
    "Medians of the iterations. A time is a worker's own work, without waiting for others; an "
    "iteration ends when the last worker is through, before gradients are exchanged."
)


def _details(figures: Figures) -> str:
    counts = f"{len(figures.workers)} workers, {figures.num_iterations} iterations"
    return (
        f"{counts} of {figures.total} samples, policy {readable(figures.policy, 60)}, "
        f"predictor {readable(figures.predictor, 60)}"
    )


def _tiles(figures: Figures) -> str:
    before, after, speedup = figures.before, figures.after, figures.speedup
    if after is None:
        return ""
    then = "" if before is None else f"{duration(before.iteration_time)} → "
    tiles = [("an iteration", then + duration(after.iteration_time))]
    then = "" if before is None else f"{before.waiting_share:.0%} → "
    tiles.append(("waiting", f"{then}{after.waiting_share:.1%}"))
    if speedup is not None:
        tiles.append(("times faster", f"{speedup:.2f}"))
    if figures.above_optimum is not None:
        about = "about " if figures.optimum_is == "estimated" else ""
        tiles.append(("above the optimum", f"{about}{max(0.0, figures.above_optimum):.1%}"))
    return "".join(f'<div class="tile"><b>{escape(b)}</b>{escape(a)}</div>' for a, b in tiles)


def series_of(
    figures: Figures,
    run_log: RunLog,
    plain: RunLog | None,
    estimates: Estimates | None = None,
) -> dict[str, ArrayLike]:
    """Return the iteration times to compare a run's with in its plot: known ones, or estimates."""
    length = run_log.num_iterations
    series: dict[str, ArrayLike] = {}
    if plain is not None:
        series[figures.before_is] = _times_at(plain, run_log.iterations)
    elif estimates is not None and np.isfinite(estimates.plain).any():
        series["plain BSP, about"] = estimates.plain
    if estimates is not None and figures.optimum_is == "estimated":
        series["optimum, about"] = estimates.optimum
    elif figures.optimum is not None:
        series["optimum"] = np.full(length, figures.optimum)
    return series


def _times_at(run_log: RunLog, iterations: Ints) -> Floats:
    """Return what a run took in these iterations, or in the next it has; NaN beyond its end."""
    if run_log.num_iterations == 0:
        return np.full(len(iterations), np.nan)
    place = np.searchsorted(run_log.iterations, iterations)
    inside = place < run_log.num_iterations
    times = run_log.iteration_times[np.minimum(place, run_log.num_iterations - 1)]
    return np.where(inside, times, np.nan)


def _table(figures: Figures) -> str:
    both = [phase for phase in (figures.before, figures.after) if phase is not None]
    names = [readable(figures.before_is, 60)] if figures.before is not None else []
    names += ["balanced" if figures.before is not None else "this run"] * bool(figures.after)
    columns = ("batch size", "time", "waiting", "samples/s")
    head = "".join(f'<th colspan="{len(columns)}">{escape(name)}</th>' for name in names)
    heads = "".join(f"<th>{column}</th>" for _ in both for column in columns)
    rows = "".join(
        f"<tr><td>{escape(readable(worker, 60))}</td>"
        + "".join(f"<td>{cell}</td>" for phase in both for cell in _cells(phase, i))
        + "</tr>"
        for i, worker in enumerate(figures.workers)
    )
    return f"<table><tr><th></th>{head}</tr><tr><th>worker</th>{heads}</tr>{rows}</table>"


def _cells(phase: Phase, worker: int) -> Sequence[str]:
    if worker >= len(phase.times) or math.isnan(phase.batch_sizes[worker]):
        return ("-",) * 4
    time, waiting, speed = (v[worker] for v in (phase.times, phase.waiting, phase.speeds))
    return (
        f"{phase.batch_sizes[worker]:g}",
        "-" if math.isnan(time) else duration(time),
        "-" if math.isnan(waiting) else duration(waiting),
        "-" if math.isnan(speed) else f"{speed:.4g}",
    )
