"""The timeline of the last iterations: one lane per worker, with work and waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evenstep.core import Floats, Ints
from evenstep.insight.plots.drawing import Target, drawing, figure_of, new_figure, points, save
from evenstep.insight.plots.palette import LIGHT
from evenstep.insight.plots.panels import WAITING
from evenstep.insight.plots.plot_data import readable
from evenstep.runlog.iteration_row import waiting_of
from evenstep.runlog.run_log import RunLog, Segment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ITERATIONS = 8
"""At most this number of iterations is shown: the last ones with known times."""
LANES = 24
"""At most this number of workers is shown: of more, the slowest and the fastest ones."""
_WIDTH, _LANE = 680.0, 17.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 130.0, 12.0, 36.0, 36.0
"""Margins of the picture, in points."""
_LOOKS: dict[str, dict[str, Any]] = {
    "work": {"color": LIGHT.run, "lw": 0, "label": "processing a batch"},
    "last": {"color": LIGHT.warn, "lw": 0, "label": "the last to finish"},
    "wait": {**WAITING, "label": "waiting"},
}


def has_timeline(run_log: RunLog) -> bool:
    """Whether any time of the workers at the end of a run is known."""
    return bool(run_log.segments) and len(_rows(run_log.segments[-1])) > 0


def timeline_title(run_log: RunLog) -> str:
    """Return the title of the timeline: the worker that finished last most often."""
    segment = run_log.segments[-1]
    rows = _rows(segment)
    last, workers = _last(segment.times[rows]), segment.workers
    title = f"The last {len(rows)} iterations" if len(rows) > 1 else "The last iteration"
    if len(workers) == 1:
        return title
    counts = np.bincount(last)
    worker = readable(workers[int(counts.argmax())])
    if len(rows) == 1:
        return f"{title}: {worker} finished last"
    if counts.max() == 1:
        return f"{title}: another worker finished last in each"
    return f"{title}: {worker} finished last in {counts.max()} of them"


def draw_timeline(run_log: RunLog, target: Target) -> None:
    """Draw the timeline into a file or a stream."""
    segment = run_log.segments[-1]
    rows = _rows(segment)
    lanes = _lanes(segment, rows)
    with drawing({}):
        tall = _LANE * len(lanes)
        height = _TOP + tall + _BOTTOM
        figure = new_figure(_WIDTH, height)
        width = _WIDTH - _LEFT - _RIGHT
        place = (_LEFT / _WIDTH, _BOTTOM / height, width / _WIDTH, tall / height)
        _draw(figure.add_axes(place), segment, rows, lanes)
        save(figure, target)


def _draw(axes: Axes, segment: Segment, rows: Ints, lanes: Ints) -> None:
    starts = _starts(segment, rows)
    whole = float(starts[-1] + segment.iteration_times[rows[-1]])
    scale, unit = (1e3, "ms") if whole < 1 else (1.0, "s")
    _draw_bars(axes, segment, rows, lanes, scale)
    for start, k in zip((scale * starts).tolist(), segment.iterations[rows].tolist(), strict=True):
        axes.axvline(start, color=LIGHT.rule, lw=0.8)
        axes.annotate(str(k), (start, 1.0), (2, 3), xycoords=axes.get_xaxis_transform(),
                      textcoords="offset points", fontsize=8, color=LIGHT.pale)  # fmt: skip
    axes.set_yticks(range(len(lanes)), [readable(segment.workers[i]) for i in lanes.tolist()])
    axes.set_xlim(0, scale * whole)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    label = f"time since the start of iteration {segment.iterations[rows[0]]} ({unit})"
    if len(lanes) < len(segment.workers):
        label += f"; the slowest and fastest {len(lanes)} of {len(segment.workers)} workers"
    axes.set_xlabel(label)
    figure = figure_of(axes)
    axes.legend(
        loc="center left", bbox_to_anchor=(_LEFT, 72 * figure.get_figheight() - 10), ncols=3,
        bbox_transform=points(figure), borderpad=0, borderaxespad=0, handlelength=1.2,
    )  # fmt: skip


def _draw_bars(axes: Axes, segment: Segment, rows: Ints, lanes: Ints, scale: float) -> None:
    times = segment.times[rows]
    waited = np.nan_to_num(np.maximum(waiting_of(segment.waiting[rows], times), 0.0))
    worked = np.nan_to_num(np.maximum(times, 0.0))
    starts = np.broadcast_to(_starts(segment, rows)[:, None], times.shape)
    is_last = np.zeros(times.shape, bool)
    if len(segment.workers) > 1:
        is_last[np.arange(len(rows)), _last(times)] = True
    bars = {
        "work": (starts, np.where(is_last, 0.0, worked)),
        "last": (starts, np.where(is_last, worked, 0.0)),
        "wait": (starts + worked, waited),
    }
    for name, (begins, lengths) in bars.items():
        at, row = np.nonzero(lengths[:, lanes].T > 0)
        if len(at):
            begin, length = (scale * each[row, lanes[at]] for each in (begins, lengths))
            axes.barh(at, length, 0.76, begin, **_LOOKS[name])


def _rows(segment: Segment) -> Ints:
    known = np.flatnonzero(np.isfinite(segment.iteration_times))
    rows: Ints = known[-ITERATIONS:]
    return rows


def _last(times: Floats) -> Ints:
    """Return the worker that finished last in each iteration."""
    last: Ints = np.argmax(np.nan_to_num(times), axis=1)
    return last


def _lanes(segment: Segment, rows: Ints) -> Ints:
    """Return the workers to show, in their order; those that finished last are among them."""
    if len(segment.workers) <= LANES:
        return np.arange(len(segment.workers))
    slowness = np.nan_to_num(segment.times[rows]).mean(axis=0)
    slowness[_last(segment.times[rows])] = np.inf
    order = np.argsort(-slowness, kind="stable")
    return np.sort(np.concatenate((order[: LANES // 2], order[-LANES // 2 :])))


def _starts(segment: Segment, rows: Ints) -> Floats:
    """Return the starts of the iterations, the first one at 0; back to back where unknown."""
    starts = segment.starts[rows]
    if np.isfinite(starts).all() and (np.diff(starts) > 0).all():
        return np.asarray(starts - starts[0])
    lengths = segment.iteration_times[rows]
    return np.concatenate(([0.0], np.cumsum(lengths)[:-1]))
