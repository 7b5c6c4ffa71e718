"""The plot of a run: batch sizes, batch processing times with waiting, and iteration times."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenstep.core import Floats, as_floats
from evenstep.core.arrays import mean
from evenstep.errors import InvalidSetting
from evenstep.estimates import Estimates, estimates_of
from evenstep.estimates.words import duration
from evenstep.insight.plots import panels
from evenstep.insight.plots.drawing import (
    Target,
    check_format,
    draw_title,
    drawing,
    new_figure,
    save,
)  # fmt: skip
from evenstep.insight.plots.plot_data import (
    BEGINNING,
    LONG,
    Numbers,
    Picture,
    event_labels,
    readable,
)  # fmt: skip
from evenstep.insight.thinning import group_medians
from evenstep.runlog.run_log import RunLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 680.0
"""Width of a picture, in points."""
_LEFT, _GAP = 46.0, 20.0
_TITLE, _HEAD, _FOOT = 44.0, 27.0, 36.0
"""Heights of the title, of the space above a panel, and of the axis at the bottom, in points."""

_EQUAL = 0.02
"""Up to this difference, two iteration times are called equal."""


@dataclass(frozen=True)
class Answer:
    """The answer that a plot has as its title: what an iteration took, in seconds, and why.

    >>> Answer(0.1412, 0.014, before=0.389).title
    '2.75 × faster than plain BSP: 389 → 141 ms'
    >>> Answer(0.1412, 0.014).title
    "An iteration took 141 ms; waiting was 1.4% of the workers' time"
    """

    iteration_time: float
    waiting_share: float
    """The fraction of the workers' time that was spent waiting."""
    before: float | None = None
    """The iteration time to compare with, if one is known."""
    before_is: str = "plain BSP"
    estimated: bool = False
    """Whether `before` is an estimate."""
    straggler: str | None = None
    """The worker that is labelled as the straggler; by default the slowest, if they are many."""
    about: str = ""
    """The iterations that it is about."""

    @classmethod
    def of(cls, run_log: RunLog, plain: Floats | None = None) -> Answer:
        """Make the answer of a run; `plain` are plain BSP's iteration times, if they are known."""
        estimates = estimates_of(run_log)
        if estimates is None:
            return cls(math.nan, math.nan)
        answer = cls.of_estimates(estimates)
        if plain is None:
            return answer
        rows = (run_log.iterations >= estimates.first) & (run_log.iterations <= estimates.last)
        return replace(answer, before=float(mean(plain[rows], axis=0)), estimated=False)

    @classmethod
    def of_estimates(cls, estimates: Estimates) -> Answer:
        """Make the answer of estimates; it has the gain if that is clear."""
        slow, gain = estimates.straggler, estimates.gain
        clear = not estimates.is_even and (gain.low > 1 or gain.high < 1)
        return cls(
            estimates.iteration_time,
            estimates.waiting_share,
            before=estimates.plain.value if clear else None,
            estimated=True,
            straggler=slow.worker if slow is not None and slow.is_clear else None,
            about=estimates.about,
        )

    @property
    def title(self) -> str:
        now = self.iteration_time
        if not math.isfinite(now):
            return "No iteration has a known time"
        if self.before is None or not math.isfinite(self.before) or now <= 0:
            return f"An iteration took {duration(now)}; {self.waiting}"
        ratio, than = self.before / now, readable(self.before_is, 40)
        about = "about " if self.estimated else ""
        if abs(ratio - 1) <= _EQUAL:
            words = f"{about}as fast as {than}: {duration(now)}"
        else:
            faster = "faster" if ratio > 1 else "slower"
            words = f"{about}{max(ratio, 1 / ratio):.2f} × {faster} than {than}: "
            words += about + change(self.before, now)
        return words[0].upper() + words[1:]

    @property
    def waiting(self) -> str:
        if not math.isfinite(self.waiting_share):
            return "waiting is unknown"
        return f"waiting was {self.waiting_share:.1%} of the workers' time"


def change(before: float, after: float) -> str:
    """Return two times, with the unit once if it is the same.

    >>> change(0.389, 0.1412), change(1.5, 0.75)
    ('389 → 141 ms', '1.5 s → 750 ms')
    """
    (first, unit), (second, other) = duration(before).split(), duration(after).split()
    return f"{first} {'' if unit == other else unit + ' '}→ {second} {other}"


def plot(
    run_log: RunLog,
    path: str | os.PathLike[str],
    series: Mapping[str, ArrayLike] | None = None,
    answer: Answer | None = None,
) -> None:
    """Draw a run log into a `.png` or `.svg` file.

    Batch sizes are at the top, batch processing times with shaded waiting in the middle, iteration
    times at the bottom. `series` are iteration times to compare with, such as those of plain BSP:
    from a label to one value in seconds per iteration of the run log. The title is the `answer`.
    """
    check_format(path)
    draw_run(run_log, Path(path), series or {}, answer)


def draw_run(
    run_log: RunLog,
    target: Target,
    series: Mapping[str, ArrayLike],
    answer: Answer | None,
    titled: bool = True,
) -> None:
    """Draw a run log into a file or a stream; a page has the title itself."""
    others = {
        label: _checked(label, times, run_log.num_iterations) for label, times in series.items()
    }
    numbers = Numbers.of(run_log, others, answer.straggler if answer else None)
    answer = answer or Answer.of(run_log)
    with drawing({}):
        save(_figure(run_log, numbers, answer, _TITLE if titled else 0.0), target)


def _checked(label: str, times: ArrayLike, num_iterations: int) -> Floats:
    values = as_floats(times)
    if values.shape != (num_iterations,):
        raise InvalidSetting(
            f"series {label!r} must have one time per iteration ({num_iterations}), "
            f"got shape {values.shape}"
        )
    return np.where(np.isfinite(values), values, np.nan)


def _figure(run_log: RunLog, numbers: Numbers, answer: Answer, title_height: float) -> Figure:
    pictures = [Picture.of(numbers)]
    if len(numbers.iterations) > LONG:
        pictures.insert(0, Picture.of(numbers, first=BEGINNING))
    draws, titles, heights = [panels.draw_sizes], ["Batch sizes (samples)"], [140.0]
    if np.isfinite(numbers.times).any():
        draws += [panels.draw_times, panels.draw_iteration_times]
        unit = numbers.unit
        titles += [
            f"Batch processing times ({unit}); {answer.waiting}",
            f"Iteration times ({unit})",
        ]
        heights += [150.0, 130.0]
    widths = _widths(len(pictures))
    figure = new_figure(WIDTH, WIDTH)
    grid = figure.subplots(len(draws), len(pictures), sharex="col", sharey="row", squeeze=False)
    events, label_rows, ends = event_labels(run_log), 0, []
    for column, picture, width in zip(grid.T, pictures, widths, strict=True):
        ends = [draw(axes, numbers, picture) for draw, axes in zip(draws, column, strict=True)]
        _draw_iterations(column[-1], numbers, picture)
        beyond = panels.LABELS if picture is pictures[-1] else 0.0
        label_rows = max(label_rows, panels.draw_marks(column, events, width, beyond))
    _lay_out(figure, grid, heights, widths, title_height + panels.LINE * label_rows)
    above = [panels.LINE * label_rows, 0.0, 0.0]
    for row, title, labels, room in zip(grid, titles, ends, above, strict=False):
        row[0].set_title(title, pad=7 + room)
        _start_at_zero(row[0])
        panels.label_ends(row[-1], labels)
    if title_height:
        draw_title(figure, answer.title, _details(run_log, answer.about))
    return figure


def _start_at_zero(axes: Axes) -> None:
    """Let the vertical axis begin at 0, with room above the highest value."""
    axes.set_ylim(0, 1.03 * axes.get_ylim()[1])


def _widths(num_columns: int) -> Sequence[float]:
    """Return the widths of the columns, in points."""
    width = WIDTH - _LEFT - panels.LABELS
    return [width] if num_columns == 1 else [0.3 * (width - _GAP), 0.7 * (width - _GAP)]


def _lay_out(
    figure: Figure,
    grid: NDArray[Any],
    heights: Sequence[float],
    widths: Sequence[float],
    above: float,
) -> None:
    """Put the panels at their places, with room `above` the first one."""
    height = above + sum(heights) + _HEAD * len(heights) + _FOOT
    figure.set_size_inches(WIDTH / 72, height / 72)
    bottom = height - above
    for row, tall in zip(grid, heights, strict=True):
        bottom -= _HEAD + tall
        left = _LEFT
        for axes, wide in zip(row, widths, strict=True):
            axes.set_position((left / WIDTH, bottom / height, wide / WIDTH, tall / height))
            left += wide + _GAP


def _draw_iterations(axes: Axes, numbers: Numbers, picture: Picture) -> None:
    first, last = picture.iterations[[0, -1]]
    axes.set_xlim((first, last) if last > first else (first - 1, first + 1))
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel(_axis_label(numbers, picture))


def _axis_label(numbers: Numbers, picture: Picture) -> str:
    if len(picture.iterations) < len(numbers.iterations):
        return "iteration: the beginning"
    dots = "" if picture.every == 1 else f"medians of {picture.every}"
    lines = "" if picture.window == 1 else f"running medians of {picture.window} points"
    remarks = ", then ".join(filter(None, (dots, lines)))
    return f"iteration ({remarks})" if remarks else "iteration"


def _details(run_log: RunLog, about: str) -> str:
    """Return the subtitle: what the title is about, the run and its configuration."""
    header, num_workers = run_log.header, len(run_log.workers)
    details = [
        f"{header.source.capitalize()} run: {readable(header.job, 40)}",
        *([f"means of {about}"] if about else []),
        f"{num_workers} worker{'s' * (num_workers != 1)}",
        f"total {header.total} samples",
        *([] if header.scheme == "bsp" else [f"scheme {readable(header.scheme)}"]),
        f"policy {readable(header.policy)}",
        f"predictor {readable(header.predictor)}",
        *([] if header.seed is None else [f"seed {readable(str(header.seed))}"]),
    ]
    return readable(", ".join(details), 125)


_PANEL = 110.0

PANELS = {
    "speeds": "Speeds (samples/s)",
    "cpu": "Available CPU (fraction)",
    "memory": "Free memory (fraction)",
    "device_memory": "Device memory in use, at its peak (fraction)",
}
"""Titles of the quantities that have a panel if they are known."""


def known_usage(run_log: RunLog) -> list[str]:
    """Return the quantities of `PANELS` that a run log has."""
    return [name for name in PANELS if np.isfinite(run_log.matrix(name)).any()]


def draw_usage(run_log: RunLog, target: Target, straggler: str | None = None) -> None:
    """Draw the known speeds and usage into a file or a stream."""
    numbers = Numbers.of(run_log, {}, straggler)
    picture, known = Picture.of(numbers), known_usage(run_log)
    if not known:
        raise InvalidSetting(f"a run log must have one of {', '.join(PANELS)}, got none of them")
    with drawing({}):
        heights, widths = [_PANEL] * len(known), _widths(1)
        figure = new_figure(WIDTH, WIDTH)
        grid = figure.subplots(len(known), 1, sharex=True, squeeze=False)
        _lay_out(figure, grid, heights, widths, above=0.0)
        for (axes,), name in zip(grid, known, strict=True):
            values = group_medians(run_log.matrix(name), picture.every)
            ends = panels.draw_workers(axes, numbers, picture, values)
            title = PANELS[name]
            if name == "speeds" and np.isfinite(run_log.matrix("predicted_speeds")).any():
                _draw_predicted(axes, run_log, numbers, picture)
                title += ": solid as they were, dashed as predicted"
            axes.set_title(title, pad=7)
            _start_at_zero(axes)
            panels.label_ends(axes, ends)
        _draw_iterations(grid[-1, 0], numbers, picture)
        save(figure, target)


def _draw_predicted(axes: Axes, run_log: RunLog, numbers: Numbers, picture: Picture) -> None:
    speeds = group_medians(run_log.matrix("predicted_speeds"), picture.every)
    for lane, colour in zip(numbers.lanes, panels.lane_colours(numbers), strict=True):
        line = picture.smooth(speeds[:, lane.column])
        panels.draw_line(axes, picture.at, line, color=colour, lw=1.0, ls=(0, (3, 2)))
