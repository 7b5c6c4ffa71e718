"""The panels of the plot: batch sizes, batch processing times with waiting, iteration times.

Each returns the labels of its lines, which are written at the right where the lines end. Events are
dashed lines through all panels, but plans: they show as steps of the batch sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from evenstep.insight.plots.drawing import figure_of, frame_of, points
from evenstep.insight.plots.palette import LIGHT
from evenstep.insight.plots.plot_data import FEW, Numbers, Picture, readable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OWN = "this run"

LABELS = 150.0
"""Width of the labels at the right of a panel, in points."""
_SPACING = 12.0
"""Distance between two labels, in points."""

_DASHED, _DOTTED, _MIXED = (0, (5, 2.5)), (0, (1.5, 1.5)), (0, (5, 1.5, 1, 1.5))

WAITING: dict[str, Any] = {
    "facecolor": LIGHT.wait, "edgecolor": LIGHT.mark, "hatch": "/////", "lw": 0.0,
}  # fmt: skip
"""The looks of waiting in all pictures."""

Values = NDArray[np.float64]

Style = str | tuple[float, Sequence[float]]


@dataclass(frozen=True)
class End:
    """The label of a line or of an area, and the value where it ends."""

    label: str
    value: float
    colour: str
    style: Style = "-"
    area: float = 0.0
    """Opacity of an area; 0 for a line."""
    hatch: bool = False


def draw_sizes(axes: Axes, numbers: Numbers, picture: Picture) -> list[End]:
    exact = replace(picture, window=1)
    return draw_workers(axes, numbers, exact, picture.sizes, steps=picture.every == 1)


def draw_times(axes: Axes, numbers: Numbers, picture: Picture) -> list[End]:
    worked, finished = picture.worked, picture.worked + picture.waited
    axes.fill_between(picture.at, worked, finished, **WAITING)
    draw_workers(axes, numbers, picture, picture.times)
    if not (finished > worked).any():
        return []
    return [End("waiting, mean worker", _last(finished), LIGHT.wait, area=1.0, hatch=True)]


def draw_iteration_times(axes: Axes, numbers: Numbers, picture: Picture) -> list[End]:
    ends = []
    series = {OWN: picture.iteration_times, **picture.series}
    for label, times in series.items():
        colour, style = _looks(label)
        if picture.window > 1:
            draw_line(axes, picture.at, times, color=colour, lw=0.6, alpha=0.25)
        smooth = picture.smooth(times)
        width = 1.8 if label == OWN else 1.4
        draw_line(axes, picture.at, smooth, color=colour, ls=style, lw=width)
        ends.append(End(label, _last(smooth), colour, style))
    return ends


def _looks(label: str) -> tuple[str, Style]:
    """Return colour and style of a series of iteration times."""
    if label == OWN:
        return LIGHT.run, "-"
    if label.startswith("plain BSP"):
        return LIGHT.plain, _DASHED
    if label.startswith(("optimum", "oracle")):
        return LIGHT.optimum, _DOTTED
    return LIGHT.pale, _MIXED


def draw_workers(
    axes: Axes, numbers: Numbers, picture: Picture, matrix: Values, steps: bool = False
) -> list[End]:
    """Draw a quantity of the workers: a line each if they are few, otherwise bands."""
    ends = []
    if numbers.num_workers > FEW:
        ends = _draw_bands(axes, picture, matrix, steps)
    for lane, colour in zip(numbers.lanes, lane_colours(numbers), strict=True):
        line = picture.smooth(matrix[:, lane.column])
        draw_line(axes, picture.at, line, color=colour, lw=1.4, ds=_steps(steps))
        ends.append(End(lane.label, _last(line), colour))
    return ends


def draw_line(axes: Axes, at: Values, values: Values, color: str, **style: Any) -> None:
    """Draw a line; values without a known neighbour are dots, as no line goes through them."""
    axes.plot(at, values, color=color, **style)
    known = np.isfinite(np.pad(values, 1, constant_values=np.nan))
    alone = known[1:-1] & ~known[:-2] & ~known[2:]
    if alone.any():
        axes.plot(at[alone], values[alone], "o", color=color, ms=4)


def lane_colours(numbers: Numbers) -> Sequence[str]:
    """Return the colours of the workers with a line: their own, or those of their roles."""
    colours = LIGHT.series if numbers.num_workers <= FEW else (LIGHT.warn, LIGHT.leader)
    return colours[: len(numbers.lanes)]


def _draw_bands(axes: Axes, picture: Picture, matrix: Values, steps: bool) -> list[End]:
    at, (low, lower, middle, upper, high) = picture.at, picture.bands(matrix)
    step: Literal["post"] | None = "post" if steps else None
    axes.fill_between(at, low, high, color=LIGHT.workers, alpha=0.2, lw=0, step=step)
    axes.fill_between(at, lower, upper, color=LIGHT.workers, alpha=0.3, lw=0, step=step)
    draw_line(axes, at, middle, color=LIGHT.workers, lw=1.2, ds=_steps(steps))
    return [
        End("5-95 % of workers", _last(high), LIGHT.workers, area=0.2),
        End("25-75 %", _last(upper), LIGHT.workers, area=0.44),
        End(f"median of {matrix.shape[1]}", _last(middle), LIGHT.workers),
    ]


def _steps(steps: bool) -> Literal["default", "steps-post"]:
    return "steps-post" if steps else "default"


def _last(values: Values) -> float:
    """Return the last known value, NaN if there is none."""
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else np.nan


def label_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Write the labels at the right of a panel, at the height of their ends or as near as possible.

    A label without a known value has no line either, and is left out.
    """
    figure = figure_of(axes)
    left, bottom, width, height = frame_of(axes)
    low, high = axes.get_ylim()
    known = sorted((end for end in ends if np.isfinite(end.value)), key=lambda end: end.value)
    ends_at = [height * min(1.0, max(0.0, (end.value - low) / (high - low))) for end in known]
    places = spread(ends_at, _SPACING, height)
    for end, at, place in zip(known, ends_at, places, strict=True):
        _draw_end(figure, end, left + width + 2, bottom + at, bottom + place)


def _draw_end(figure: Figure, end: End, right: float, y: float, label_y: float) -> None:
    """Draw a thin line from an end to its label, a sample of its looks, and the label."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    begin, width, in_points = right + 10, 14, points(figure)
    style: dict[str, Any] = {"transform": in_points, "figure": figure}
    lead = Line2D([right, begin - 1], [y, label_y], color=LIGHT.rule, lw=0.5, **style)
    looks = {"color": end.colour, "alpha": end.area, "lw": 0}
    sample: Artist = Rectangle(
        (begin, label_y - 3.5), width, 7, **(WAITING if end.hatch else looks), **style
    )
    if not end.area:
        sample = Line2D(
            [begin, begin + width], [label_y] * 2, color=end.colour, ls=end.style, lw=1.6, **style
        )  # fmt: skip
    figure.add_artist(lead)
    figure.add_artist(sample)
    figure.text(
        begin + width + 4, label_y, readable(end.label, 22), va="center_baseline", fontsize=8.5,
        transform=in_points,
    )  # fmt: skip


def spread(places: Sequence[float], spacing: float, end: float) -> list[float]:
    """Return places that are at least `spacing` apart, from 0 to `end` if there is room.

    >>> spread([10.0, 12.0, 99.0, 100.0], spacing=5.0, end=100.0)
    [10.0, 15.0, 95.0, 100.0]
    """
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + spacing) if moved else place)
    most = end
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], most)
        most = moved[i] - spacing
    return moved


_ROWS = 3
"""Lines of labels above a panel."""
_LETTER = 4.9
"""Width of a letter of a label, in points."""
LINE = 10.0
"""Height of a line of labels, in points."""


def draw_marks(
    column: Sequence[Axes], events: Mapping[int, str], width: float, beyond: float
) -> int:
    """Draw the events into the panels of a column, `width` points wide, and label them above.

    Labels may be `beyond` points outside of the column, on the right. Returns how many lines the
    labels take.
    """
    top = column[0]
    first, last = top.get_xlim()
    labels = {k: label for k, label in events.items() if first <= k <= last}
    for axes in column:
        for iteration in labels:
            axes.axvline(iteration, color=LIGHT.rule, lw=0.8, ls=(0, (4, 3)), zorder=1.5)
    point = (last - first) / width
    return _draw_labels(top, labels, point, last + point * beyond)


def _draw_labels(axes: Axes, labels: Mapping[int, str], point: float, end: float) -> int:
    """Draw each label into the first row with room for it; without room, it is left out.

    A label is to the right of its line, or to the left if it would pass `end`. `point` is the
    width of a typographic point, in iterations.
    """
    taken = [-math.inf] * _ROWS
    for iteration, label in labels.items():
        width = point * _LETTER * (len(label) + 1)
        to_left = iteration + width > end
        begin = iteration - width if to_left else float(iteration)
        row = next((row for row in range(_ROWS) if taken[row] <= begin), None)
        if row is None:
            continue
        axes.annotate(
            label, (iteration, 1.0), (-2 if to_left else 2, 3 + LINE * row), color=LIGHT.pale,
            fontsize=8, ha="right" if to_left else "left",
            xycoords=axes.get_xaxis_transform(), textcoords="offset points",
        )  # fmt: skip
        taken[row] = begin + width
    return sum(end > -math.inf for end in taken)
