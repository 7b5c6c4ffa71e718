"""The panels of the plot: batch sizes, batch processing times with waiting, iteration times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from evenstep.core import Floats
from evenstep.insight.plots.plot_data import FEW, Numbers, Picture
from evenstep.insight.thinning import median, quantiles, running_mean, running_median

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000",
)  # fmt: skip
"""Okabe and Ito's colours, for the colour-blind, with grey instead of their pale yellow."""

ROLE_COLOURS = ("#d55e00", "#009e73")
"""Colours of the straggler and the leader, where the other workers are a band."""

SERIES_STYLES = (("#d55e00", "-"), ("#009e73", (0, (4, 2))), ("#cc79a7", "-."), ("#0072b2", ":"))

BAND, INK, SHADE = "#56b4e9", "#222222", "#c4c4c4"

OWN = "this run"


def draw_sizes(axes: Axes, numbers: Numbers, picture: Picture) -> None:
    steps = picture.every == 1
    draw_workers(axes, numbers, picture, picture.sizes, window=1, steps=steps)


def draw_times(axes: Axes, numbers: Numbers, picture: Picture) -> None:
    worked = running_mean(picture.worked, picture.window)
    finished = worked + running_mean(picture.waited, picture.window)
    label = "waiting\n(mean of the workers)"
    axes.fill_between(picture.at, worked, finished, color=SHADE, lw=0, label=label)
    draw_workers(axes, numbers, picture, picture.times, picture.window)


def draw_iteration_times(axes: Axes, numbers: Numbers, picture: Picture) -> None:
    lines = [
        (label, times, *SERIES_STYLES[i % len(SERIES_STYLES)])
        for i, (label, times) in enumerate(picture.series.items())
    ]
    for label, times, colour, style in [*lines, (OWN, picture.iteration_times, INK, "-")]:
        if picture.window > 1:
            axes.plot(picture.at, times, color=colour, lw=0.6, alpha=0.25)
        smooth = running_median(times, picture.window)
        axes.plot(picture.at, smooth, color=colour, ls=style, lw=1.4, label=label)


def times_title(numbers: Numbers) -> str:
    return f"Batch processing times: waiting is {numbers.waiting_share:.1%} of the workers' time"


def iteration_times_title(numbers: Numbers) -> str:
    series = {OWN: numbers.iteration_times, **numbers.series}
    medians = {label: float(median(times, axis=0)) for label, times in series.items()}
    known = [
        f"{label} {value:.4g} {numbers.unit}"
        for label, value in medians.items()
        if np.isfinite(value)
    ]
    return "Iteration times: median of " + ", ".join(known)


def draw_workers(
    axes: Axes, numbers: Numbers, picture: Picture, matrix: Floats, window: int, steps: bool = False
) -> None:
    """Draw a quantity of the workers: a line each if they are few, otherwise bands."""
    colours: Sequence[str] = COLOURS
    if numbers.num_workers > FEW:
        colours = ROLE_COLOURS
        _draw_bands(axes, picture.at, matrix, window, steps)
    style: Literal["default", "steps-post"] = "steps-post" if steps else "default"
    for lane, colour in zip(numbers.lanes, colours, strict=False):
        line = running_median(matrix[:, lane.column], window)
        axes.plot(picture.at, line, color=colour, lw=1.4, ds=style, label=lane.label)


def _draw_bands(axes: Axes, at: Floats, matrix: Floats, window: int, steps: bool) -> None:
    low, lower, middle, upper, high = (running_median(band, window) for band in quantiles(matrix))
    step: Literal["post"] | None = "post" if steps else None
    outer = "5-95 % of the workers"
    axes.fill_between(at, low, high, color=BAND, alpha=0.3, lw=0, step=step, label=outer)
    axes.fill_between(at, lower, upper, color=BAND, alpha=0.6, lw=0, step=step, label="25-75 %")
    style: Literal["default", "steps-post"] = "steps-post" if steps else "default"
    label = f"median of {matrix.shape[1]}"
    axes.plot(at, middle, color=COLOURS[0], lw=1.2, ds=style, label=label)
