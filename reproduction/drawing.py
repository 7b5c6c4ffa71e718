"""Plots of results, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evenstep.core import Floats
from evenstep.core.archive import replace_file
from evenstep.insight.plots.drawing import drawing, save
from evenstep.insight.plots.palette import LIGHT
from evenstep.insight.plots.plot_data import readable
from reproduction.result import KINDS, Curve, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NO_FIGURE = "-: not reached, not run, or not in the paper"
"""The entry in the legend for missing bars."""


def picture_file(folder: Path, name: str, number: int) -> Path:
    """Return the path of a plot of an experiment, counted from 0.

    >>> picture_file(Path("out"), "micro", 0).as_posix()
    'out/micro-1.svg'
    """
    return folder / f"{name}-{number + 1}.svg"


def save_pictures(folder: Path, name: str, plots: Sequence[Plot]) -> None:
    """Draw the plots of an experiment that are missing in the folder."""
    for i, plot in enumerate(plots):
        if not (file := picture_file(folder, name, i)).is_file():
            replace_file(file, draw(plot))


def draw(plot: Plot) -> bytes:
    """Return the picture of a plot."""
    with drawing({}):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 4), layout="constrained")
        axes = figure.subplots()
        (_draw_bars if plot.bars else _draw_lines)(axes, plot)
        axes.set_title(f"{plot.title} ({KINDS[plot.kind]})", wrap=True)
        axes.set_xlabel(plot.x)
        axes.set_ylabel(plot.y)
        # Next to the bars, where it hides none.
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0)
        file = BytesIO()
        save(figure, file)
        return file.getvalue()


def _draw_lines(axes: Axes, plot: Plot) -> None:
    for i, curve in enumerate(plot.curves):
        y = _numbers(curve)
        few = len(y) <= 30
        axes.plot(
            curve.x,
            y,
            color=LIGHT.nth(i),
            label=readable(curve.label, 48),
            linestyle="--" if curve.dashed else "-",
            linewidth=1.4,
            marker="o" if few else None,
            markersize=3,
        )
    if plot.log:
        _grow_by_factors(axes, sorted({x for curve in plot.curves for x in curve.x}))
    else:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    for at, what in plot.marks:
        axes.axvline(at, color=LIGHT.rule, linewidth=0.8, linestyle=(0, (4, 3)))
        top = axes.get_ylim()[1]
        axes.text(at, top, f" {readable(what, 48)}", fontsize=8, va="top", color=LIGHT.pale)


def _grow_by_factors(axes: Axes, places: Sequence[float]) -> None:
    """Make both axes logarithmic, with plain numbers at the ticks."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _numbers(curve: Curve) -> Floats:
    return np.array([np.nan if value is None else value for value in curve.y], dtype=float)


def _draw_bars(axes: Axes, plot: Plot) -> None:
    width = 0.8 / len(plot.curves)
    names = list(plot.curves[0].x)
    for i, curve in enumerate(plot.curves):
        at = np.arange(len(names)) + (i - (len(plot.curves) - 1) / 2) * width
        heights, label = _numbers(curve), readable(curve.label, 48)
        axes.bar(at, heights, width, color=LIGHT.nth(i), label=label)
        for place in at[np.isnan(heights)]:
            # A bar of height 0 would look like the best of all.
            axes.text(place, 0, "-", fontsize=14, ha="center", va="bottom")
    if any(np.isnan(_numbers(curve)).any() for curve in plot.curves):
        axes.bar([0], [np.nan], color="none", label=NO_FIGURE)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xticks(range(len(names)), [readable(str(name), 24) for name in names])
    if len(names) > 6:
        for name in axes.get_xticklabels():
            name.set(rotation=30, ha="right", rotation_mode="anchor")
    axes.grid(axis="x", visible=False)
