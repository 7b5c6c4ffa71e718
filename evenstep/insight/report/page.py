"""The report as a page: one self-contained HTML file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from io import BytesIO

import numpy as np
from numpy.typing import ArrayLike

from evenstep.core import Floats, Ints
from evenstep.estimates.words import duration, percent
from evenstep.insight.plots.plot import Answer, change, draw_run, draw_usage, known_usage
from evenstep.insight.plots.plot_data import readable
from evenstep.insight.plots.timeline import draw_timeline, has_timeline, timeline_title
from evenstep.insight.report.document import document, inlined
from evenstep.insight.report.figures import Figures, Phase, Retrospect
from evenstep.insight.report.words import SOURCE_MEANS, sentences
from evenstep.runlog.event import Event
from evenstep.runlog.run_log import RunLog


def page(
    figures: Figures,
    run_log: RunLog,
    plain: RunLog | None = None,
    back: Retrospect | None = None,
) -> str:
    """Return the report of a run; everything from a log is escaped."""
    title = f"{figures.source.capitalize()} run: {readable(figures.job, 60)}"
    words = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences(figures))
    drawn = pictures(run_log, series_of(figures, run_log, plain, back), answer_of(figures))
    body = (
        f"<h1>{escape(title)}</h1>"
        f'<p class="source">{escape(SOURCE_MEANS[figures.source])}</p>'
        f'<p class="pale">{escape(_details(figures))}</p>\n'
        f'<div class="tiles">{_tiles(figures)}</div>\n{words}\n'
        f"{drawn}\n"
        f'<h2>Workers</h2><div class="wide">{_table(figures)}</div>\n'
        f'<p class="pale">{escape(_REMARK)}</p>\n'
        f'<h2>Events</h2><div class="wide">{event_table(run_log)}</div>'
    )
    return document(title, body)


_REMARK = (
    "Medians of the same iterations. A time is a worker's own work, without waiting for others; an "
    "iteration ends when the last worker is through, before gradients are exchanged."
)


def _details(figures: Figures) -> str:
    counts = f"{_count(len(figures.workers), 'worker')}, "
    counts += _count(figures.num_iterations, "iteration")
    return (
        f"{counts} of {figures.total} samples, policy {readable(figures.policy, 60)}, "
        f"predictor {readable(figures.predictor, 60)}"
    )


def _count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> _count(1, "worker"), _count(2, "worker")
    ('1 worker', '2 workers')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def _tiles(figures: Figures) -> str:
    estimates, gain = figures.estimates, figures.gain
    if estimates is None or gain is None or figures.above_optimum is None:
        return ""
    before = figures.plain_run
    took = duration(estimates.iteration_time)
    if before is not None:
        took = change(before.iteration_time, estimates.iteration_time)
    tiles = [("an iteration", took)]
    then = "" if before is None else f"{percent(before.waiting_share)} → "
    tiles.append(("waiting", then + percent(estimates.waiting_share)))
    if not math.isnan(gain.value) and (before is not None or not estimates.is_even):
        tiles.append(("times faster than plain BSP", f"{gain.value:.2f}"))
    about = "about " if figures.known_optimum is None else ""
    if not math.isnan(figures.above_optimum):
        tiles.append(("above the optimum", about + percent(max(0.0, figures.above_optimum))))
    return "".join(f'<div class="tile"><b>{escape(b)}</b>{escape(a)}</div>' for a, b in tiles)


def series_of(
    figures: Figures, run_log: RunLog, plain: RunLog | None, back: Retrospect | None = None
) -> dict[str, ArrayLike]:
    """Return the iteration times that the plot compares with the run: known, or estimates."""
    series: dict[str, ArrayLike] = {}
    if plain is not None:
        series[figures.plain_is] = _times_at(plain, run_log.iterations)
    elif back is not None and np.isfinite(back.plain).any():
        series["plain BSP, about"] = back.plain
    if figures.known_optimum is not None:
        series["optimum"] = np.full(run_log.num_iterations, figures.known_optimum)
    elif back is not None and np.isfinite(back.optimum).any():
        series["optimum, about"] = back.optimum
    return series


def _times_at(run_log: RunLog, iterations: Ints) -> Floats:
    """Return the times of these iterations, or of the next recorded ones; NaN beyond the end."""
    if run_log.num_iterations == 0:
        return np.full(len(iterations), np.nan)
    position = np.searchsorted(run_log.iterations, iterations)
    inside = position < run_log.num_iterations
    times = run_log.iteration_times[np.minimum(position, run_log.num_iterations - 1)]
    return np.where(inside, times, np.nan)


def _table(figures: Figures) -> str:
    both = [phase for phase in (figures.plain_phase, figures.phase) if phase is not None]
    has_plain = figures.plain_phase is not None
    names = [readable(figures.plain_is, 60)] if has_plain else []
    names += ["balanced" if has_plain else "this run"] * (figures.phase is not None)
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


ROWS = 100
"""Most rows of the table: other events have priority over plans, later events over earlier ones."""
_SIZES = 12


def event_table(run_log: RunLog) -> str:
    """Return the table of events; everything from the log is escaped."""
    events = [event for event in run_log.events if _words(event)]
    shown = _chosen(events)
    if not shown:
        return "<p>Nothing was noted.</p>"
    rows = "".join(
        f"<tr><td>{event.iteration}</td><td>{escape(event.kind)}</td>"
        f"<td>{escape(_words(event))}</td></tr>"
        for event in shown
    )
    table = (
        f'<table class="events"><tr><th>iteration</th><th>event</th><th></th></tr>{rows}</table>'
    )
    left_out = len(events) - len(shown)
    return table + (f'<p class="pale">and {left_out} more</p>' if left_out else "")


def _chosen(events: Sequence[Event]) -> list[Event]:
    """Return the events that are shown, in their order."""
    ranked = sorted(range(len(events)), key=lambda i: (events[i].kind in ("plan", "proposal"), -i))
    return [events[i] for i in sorted(ranked[:ROWS])]


def _words(event: Event) -> str:
    """Return an event in words.

    >>> _words(Event("plan", 3, plan=1, batch_sizes=[24, 8], reason="w1 is the straggler"))
    'batch sizes 24/8: w1 is the straggler'
    """
    sizes = event.batch_sizes or ()
    more = f"/... ({len(sizes)} workers)" if len(sizes) > _SIZES else ""
    listed = "/".join(map(str, sizes[:_SIZES])) + more
    worker = readable(event.worker or "", 60)
    expected = event.predicted_time
    words = {
        "plan": f"batch sizes {listed}",
        "proposal": f"batch sizes {listed} would have been used",
        "phase": f"phase {readable(event.phase or '', 60)}",
        "advice": f"{readable(event.advice or '', 60)} {worker}",
        "join": f"{worker} joined",
        "leave": f"{worker} left",
        "limit": f"{worker} gets at most {event.cap} samples",
        "note": readable(event.text or "", 200),
        "end": "the run ended",
    }[event.kind]
    if event.kind == "advice" and expected is not None:
        words += f": an iteration would then take {duration(expected)}"
    return words + (f": {readable(event.reason, 200)}" if event.reason else "")


def answer_of(figures: Figures) -> Answer | None:
    """Return the answer of the plot, None if no time is known."""
    if figures.estimates is None:
        return None
    answer = Answer.of_estimates(figures.estimates)
    before = figures.plain_run
    if before is None:
        return answer
    slow = before.straggler
    return replace(
        answer, before=before.iteration_time, before_is=figures.plain_is, estimated=False,
        straggler=slow.worker if slow is not None and slow.is_clear else None,
    )  # fmt: skip


def pictures(run_log: RunLog, series: Mapping[str, ArrayLike], answer: Answer | None) -> str:
    """Return the sections of the page with pictures, of what is known; titles say the answers."""
    if run_log.num_iterations == 0:
        return "<h2>The run</h2><p>There is nothing to draw yet.</p>"
    shown = answer or Answer.of(run_log)
    sections = [
        (
            shown.title,
            "Batch sizes, batch processing times and iteration times along the run",
            lambda file: draw_run(run_log, file, series, shown, titled=False),
        )
    ]
    if has_timeline(run_log):
        words = "Work and waiting of each worker in the last iterations"
        sections.append((timeline_title(run_log), words, lambda file: draw_timeline(run_log, file)))
    if known_usage(run_log):
        words = "Predicted and actual speeds, available CPU and memory"
        sections.append((_USAGE, words, lambda file: draw_usage(run_log, file, shown.straggler)))
    try:
        return "\n".join(
            f"<h2>{escape(title)}</h2>{_picture(words, draw)}" for title, words, draw in sections
        )
    except ImportError as missing:
        return f"<h2>The run</h2><p>There is no picture: {escape(str(missing))}</p>"


_USAGE = "Speeds, CPU and memory"


def _picture(words: str, draw: Callable[[BytesIO], None]) -> str:
    file = BytesIO()
    draw(file)
    return inlined(file.getvalue(), words)
