"""The timeline of the last iterations: one lane per worker, with work and waiting."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evenstep.core import Floats, Ints
from evenstep.insight.plots.drawing import drawing, save
from evenstep.insight.plots.panels import BAND, SHADE
from evenstep.insight.plots.plot_data import readable
from evenstep.runlog.iteration_row import waiting_of
from evenstep.runlog.run_log import RunLog, Segment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ITERATIONS = 8
"""At most this number of iterations is shown: the last ones with known times."""
LANES = 24
"""At most this number of workers is shown: of more, the slowest and the fastest ones."""
_WIDTH, _LANE, _FRAME = 860.0, 17.0, 96.0


def has_timeline(run_log: RunLog) -> bool:
    """Whether any time of the workers at the end of a run is known."""
    return bool(run_log.segments) and len(_rows(run_log.segments[-1])) > 0


def draw_timeline(run_log: RunLog, path: Path) -> None:
    """Draw the timeline into a `.png` or `.svg` file."""
    segment = run_log.segments[-1]
    rows = _rows(segment)
    lanes = _lanes(segment, rows)
    with drawing({}):
        from matplotlib.figure import Figure

        height = _FRAME + _LANE * len(lanes)
        figure = Figure(figsize=(_WIDTH / 72, height / 72), layout="constrained")
        axes = figure.subplots()
        _draw(axes, segment, rows, lanes)
        save(figure, path)


def _draw(axes: Axes, segment: Segment, rows: Ints, lanes: Ints) -> None:
    times = segment.times[rows]
    waiting = waiting_of(segment.waiting[rows], times)
    starts = _starts(segment, rows)
    whole = float(starts[-1] - starts[0] + segment.iteration_times[rows[-1]])
    scale, unit = (1e3, "ms") if whole < 1 else (1.0, "s")
    for lane, worker in enumerate(lanes.tolist()):
        worked = np.nan_to_num(np.maximum(times[:, worker], 0.0))
        waited = np.nan_to_num(np.maximum(waiting[:, worker], 0.0))
        for begin, length, colour, label in (
            (starts, worked, BAND, "processing a batch"),
            (starts + worked, waited, SHADE, "waiting"),
        ):
            spans = np.stack((scale * begin, scale * length), axis=1).tolist()
            axes.broken_barh(spans, (lane - 0.38, 0.76), color=colour, lw=0,
                             label=label if lane == 0 else None)  # fmt: skip
    for start, k in zip((scale * starts).tolist(), segment.iterations[rows].tolist(), strict=True):
        axes.axvline(start, color="#555555", lw=0.8)
        axes.annotate(str(k), (start, 1.0), (2, 2), xycoords=axes.get_xaxis_transform(),
                      textcoords="offset points", fontsize=7, color="#444444")  # fmt: skip
    axes.set_yticks(range(len(lanes)), [readable(segment.workers[i]) for i in lanes.tolist()])
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"time since the start of iteration {segment.iterations[rows[0]]} ({unit})")
    left_out = len(segment.workers) - len(lanes)
    of_all = f"; the slowest and fastest {len(lanes)} of {len(segment.workers)} workers"
    axes.set_title(f"The last {len(rows)} iterations{of_all if left_out else ''}", pad=16)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0)


def _rows(segment: Segment) -> Ints:
    known = np.flatnonzero(np.isfinite(segment.iteration_times))
    rows: Ints = known[-ITERATIONS:]
    return rows


def _lanes(segment: Segment, rows: Ints) -> Ints:
    """Return the workers to show, in their order."""
    if len(segment.workers) <= LANES:
        return np.arange(len(segment.workers))
    mean = np.nan_to_num(segment.times[rows]).mean(axis=0)
    order = np.argsort(-mean, kind="stable")
    return np.sort(np.concatenate((order[: LANES // 2], order[-LANES // 2 :])))


def _starts(segment: Segment, rows: Ints) -> Floats:
    """Return the starts of the iterations, the first one at 0; back to back where unknown."""
    starts = segment.starts[rows]
    if np.isfinite(starts).all() and (np.diff(starts) > 0).all():
        return np.asarray(starts - starts[0])
    lengths = segment.iteration_times[rows]
    return np.concatenate(([0.0], np.cumsum(lengths)[:-1]))
