"""The second plot of a run: predicted and actual speeds, available CPU, and memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evenstep.core.arrays import Floats
from evenstep.runlog.drawing import drawing, save
from evenstep.runlog.panels import COLOURS, ROLE_COLOURS, draw_workers
from evenstep.runlog.picture import FEW, Numbers, Picture
from evenstep.runlog.run_log import RunLog
from evenstep.runlog.thinning import group_medians, running_median

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _PANEL, _FRAME = 860.0, 170.0, 40.0

PANELS = {
    "speeds": ("Speeds: as they were, and dashed as predicted", "samples/s"),
    "cpu": ("Available CPU", "fraction"),
    "memory": ("Free memory", "fraction"),
    "device_memory": ("Device memory in use, at its peak", "fraction"),
}
"""Quantities that have a panel where they are known: title and unit."""


def draw_usage(run_log: RunLog, numbers: Numbers, path: Path) -> None:
    """Draw what is known of speeds and usage into a `.png` or `.svg` file."""
    picture = Picture.of(numbers)
    matrices = {
        name: group_medians(run_log.matrix(name), picture.every)
        for name in (*PANELS, "predicted_speeds")
    }
    known = [name for name in PANELS if not np.isnan(matrices[name]).all()]
    with drawing({"lines.marker": "o" if len(picture.at) == 1 else "None"}):
        from matplotlib.figure import Figure

        height = _FRAME + _PANEL * max(1, len(known))
        figure = Figure(figsize=(_WIDTH / 72, height / 72), layout="constrained")
        panels = figure.subplots(max(1, len(known)), 1, sharex=True, squeeze=False)[:, 0]
        for axes, name in zip(panels, known, strict=False):
            draw_workers(axes, numbers, picture, matrices[name], picture.window)
            if name == "speeds":
                _draw_predicted(axes, numbers, picture, matrices["predicted_speeds"])
            title, unit = PANELS[name]
            axes.set_title(title)
            axes.set_ylabel(unit)
            axes.set_ylim(bottom=0)
        panels[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0)
        panels[-1].set_xlabel("iteration")
        save(figure, path)


def _draw_predicted(axes: Axes, numbers: Numbers, picture: Picture, speeds: Floats) -> None:
    colours = COLOURS if numbers.num_workers <= FEW else ROLE_COLOURS
    for lane, colour in zip(numbers.lanes, colours, strict=False):
        line = running_median(speeds[:, lane.column], picture.window)
        axes.plot(picture.at, line, color=colour, lw=1.0, ls=(0, (3, 2)))
