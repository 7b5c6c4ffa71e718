"""The plot of a run: batch sizes, batch processing times with waiting, and iteration times."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenstep.core import Floats, as_floats
from evenstep.errors import InvalidSetting
from evenstep.insight.plots import panels
from evenstep.insight.plots.drawing import check_format, drawing, save
from evenstep.insight.plots.event_marks import LINE, draw_marks
from evenstep.insight.plots.plot_data import BEGINNING, FEW, LONG, Numbers, Picture, readable
from evenstep.insight.thinning import group_medians, running_median
from evenstep.runlog.run_log import RunLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 860.0, 612.0
"""Size of the picture, in points."""
TITLE = 42.0
"""Height of the title, in points."""


def plot(
    run_log: RunLog, path: str | os.PathLike[str], series: Mapping[str, ArrayLike] | None = None
) -> None:
    """Draw a run log into a `.png` or `.svg` file.

    Batch sizes are at the top, batch processing times with shaded waiting in the middle, iteration
    times at the bottom. `series` are iteration times to compare with, such as those of plain BSP:
    from a label to one value in seconds per iteration of the run log.
    """
    check_format(path)
    others = {
        label: _checked(label, times, run_log.num_iterations)
        for label, times in (series or {}).items()
    }
    numbers = Numbers.of(run_log, others)
    with drawing({"lines.marker": _marker(len(numbers.iterations))}):
        save(_figure(run_log, numbers), Path(path))


def _checked(label: str, times: ArrayLike, num_iterations: int) -> Floats:
    values = as_floats(times)
    if values.shape != (num_iterations,):
        raise InvalidSetting(
            f"series {label!r} must have one time per iteration ({num_iterations}), "
            f"got shape {values.shape}"
        )
    return np.where(np.isfinite(values), values, np.nan)


def _marker(num_points: int) -> str:
    # A line through a single point shows nothing.
    return "o" if num_points == 1 else "None"


def _figure(run_log: RunLog, numbers: Numbers) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72))
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - TITLE / HEIGHT))
    pictures = [Picture.of(numbers)]
    if len(numbers.iterations) > LONG:
        pictures.insert(0, Picture.of(numbers, first=BEGINNING))
    widths = (0.3, 0.7)[-len(pictures) :]
    grid = figure.subplots(
        3, len(pictures), sharex="col", sharey="row", squeeze=False,
        width_ratios=widths, height_ratios=(1.1, 1.3, 1.0),
    )  # fmt: skip
    label_rows = 0
    for column, picture, width in zip(grid.T, pictures, widths, strict=True):
        _draw_column(column, numbers, picture)
        points = 0.85 * WIDTH * width / sum(widths)
        label_rows = max(label_rows, draw_marks(column, run_log, picture.every, points))
    _draw_words(grid, numbers, label_rows)
    _draw_title(figure, run_log)
    return figure


def _draw_column(column: Sequence[Axes], numbers: Numbers, picture: Picture) -> None:
    panels.draw_sizes(column[0], numbers, picture)
    panels.draw_times(column[1], numbers, picture)
    panels.draw_iteration_times(column[2], numbers, picture)
    first, last = picture.iterations[[0, -1]]
    column[2].set_xlim(first, max(last, first + 1))
    column[2].locator_params(axis="x", integer=True)
    column[2].set_xlabel(_axis_label(numbers, picture))


def _draw_words(grid: NDArray[Any], numbers: Numbers, label_rows: int) -> None:
    """Add titles, units and legends; the labels of the events are below the first title."""
    titles = ("Batch sizes", panels.times_title(numbers), panels.iteration_times_title(numbers))
    units = ("samples per iteration", f"time ({numbers.unit})", f"time ({numbers.unit})")
    shown: set[str] = set()
    for i, row in enumerate(grid):
        row[0].set_title(titles[i], pad=6 + (LINE * label_rows if i == 0 else 0))
        row[0].set_ylabel(units[i])
        row[0].set_ylim(bottom=0)
        shown |= _draw_legend(row[-1], without=shown)


def _draw_legend(axes: Axes, without: set[str]) -> set[str]:
    """Draw a legend of the labels that are not in `without`; return these labels."""
    entries = zip(*axes.get_legend_handles_labels(), strict=True)
    new = [(handle, label) for handle, label in entries if label not in without]
    handles, labels = [handle for handle, _ in new], [label for _, label in new]
    axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0)
    return set(labels)


def _axis_label(numbers: Numbers, picture: Picture) -> str:
    if len(picture.iterations) < len(numbers.iterations):
        return "iteration: the beginning"
    points = "" if picture.every == 1 else f"each point the median of {picture.every}"
    lines = "" if picture.window == 1 else f"lines are running medians of {picture.window} points"
    remarks = ", ".join(filter(None, (points, lines)))
    return f"iteration ({remarks})" if remarks else "iteration"


def _draw_title(figure: Figure, run_log: RunLog) -> None:
    header, num_workers = run_log.header, len(run_log.workers)
    details = [
        f"scheme {readable(header.scheme)}",
        f"policy {readable(header.policy)}",
        f"predictor {readable(header.predictor)}",
        f"{num_workers} worker{'s' * (num_workers != 1)}",
        f"total {header.total} samples",
        *([] if header.seed is None else [f"seed {readable(str(header.seed))}"]),
    ]
    title = f"{header.source.capitalize()} run: {readable(header.job, 60)}"
    figure.text(0.01, 1 - 8 / HEIGHT, title, va="top", fontsize=13, fontweight="bold")
    figure.text(0.01, 1 - 27 / HEIGHT, ", ".join(details), va="top", color="#555555")


_PANEL, _FRAME = 170.0, 40.0

PANELS = {
    "speeds": ("Speeds: as they were, and dashed as predicted", "samples/s"),
    "cpu": ("Available CPU", "fraction"),
    "memory": ("Free memory", "fraction"),
    "device_memory": ("Device memory in use, at its peak", "fraction"),
}
"""Title and unit of the quantities that have a panel if they are known."""


def draw_usage(run_log: RunLog, numbers: Numbers, path: Path) -> None:
    """Draw the known speeds and usage into a `.png` or `.svg` file."""
    picture = Picture.of(numbers)
    matrices = {
        name: group_medians(run_log.matrix(name), picture.every)
        for name in (*PANELS, "predicted_speeds")
    }
    known = [name for name in PANELS if not np.isnan(matrices[name]).all()]
    with drawing({"lines.marker": _marker(len(picture.at))}):
        from matplotlib.figure import Figure

        height = _FRAME + _PANEL * max(1, len(known))
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        grid = figure.subplots(max(1, len(known)), 1, sharex=True, squeeze=False)[:, 0]
        for axes, name in zip(grid, known, strict=False):
            panels.draw_workers(axes, numbers, picture, matrices[name], picture.window)
            if name == "speeds":
                _draw_predicted(axes, numbers, picture, matrices["predicted_speeds"])
            title, unit = PANELS[name]
            axes.set_title(title)
            axes.set_ylabel(unit)
            axes.set_ylim(bottom=0)
        grid[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0)
        grid[-1].set_xlabel("iteration")
        save(figure, path)


def _draw_predicted(axes: Axes, numbers: Numbers, picture: Picture, speeds: Floats) -> None:
    colours = panels.COLOURS if numbers.num_workers <= FEW else panels.ROLE_COLOURS
    for lane, colour in zip(numbers.lanes, colours, strict=False):
        line = running_median(speeds[:, lane.column], picture.window)
        axes.plot(picture.at, line, color=colour, lw=1.0, ls=(0, (3, 2)))
