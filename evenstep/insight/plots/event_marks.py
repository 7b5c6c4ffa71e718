"""Events in a plot: thin ticks for plans, labelled lines for other events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from evenstep.insight.plots.plot_data import readable
from evenstep.runlog.event import Event
from evenstep.runlog.run_log import RunLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS = 3
"""Lines of labels above a panel."""
LETTER = 4.3
"""Width of a letter of a label, in points."""
LINE = 9.0
"""Height of a line of labels, in points."""

_TICK, _DASHES, _LABEL = "#777777", "#9a9a9a", "#444444"


def draw_marks(panels: Sequence[Axes], run_log: RunLog, every: int, width: float) -> int:
    """Draw the events into the panels of a column, `width` points wide, and label them above.

    At most one plan in `every` iterations is drawn. Returns how many lines the labels take.
    """
    top = panels[0]
    first, last = top.get_xlim()
    plans = {event.iteration // every * every for event in run_log.events_of("plan")}
    _draw_ticks(top, [plan for plan in sorted(plans) if first <= plan <= last])
    labels = {k: label for k, label in _labels(run_log).items() if first <= k <= last}
    for axes in panels:
        for iteration in labels:
            axes.axvline(iteration, color=_DASHES, lw=0.8, ls=(0, (4, 3)), zorder=1.5)
    return _draw_labels(top, labels, (last - first) / width)


def describe(event: Event) -> str:
    """Return an event in a few words, or an empty string if it gets no label.

    >>> describe(Event("limit", 7, worker="w3", cap=64))
    'w3 at most 64'
    """
    worker = readable(event.worker or "", 16)
    words = {
        "phase": event.phase,
        "advice": f"advice: {event.advice} {worker}",
        "join": f"{worker} joins",
        "leave": f"{worker} leaves",
        "limit": f"{worker} at most {event.cap}",
        "note": event.text,
    }
    return readable(words.get(event.kind) or "", 32)


def _labels(run_log: RunLog) -> dict[int, str]:
    """Return the labels by iteration; several events of an iteration share one label."""
    events: dict[int, list[str]] = {}
    for event in run_log.events:
        if words := describe(event):
            events.setdefault(event.iteration, []).append(words)
    return {
        iteration: words[0] if len(words) == 1 else f"{words[0]} + {len(words) - 1} more"
        for iteration, words in sorted(events.items())
    }


def _draw_ticks(axes: Axes, iterations: Sequence[int]) -> None:
    if not iterations:
        return
    axes.plot(
        iterations, [0.0] * len(iterations), "|", color=_TICK, ms=8, mew=0.7, clip_on=False,
        transform=axes.get_xaxis_transform(), label="new plan",
    )  # fmt: skip


def _draw_labels(axes: Axes, labels: Mapping[int, str], point: float) -> int:
    """Draw each label into the first row with room for it; without room, it is left out.

    `point` is the width of a typographic point, in iterations.
    """
    taken = [-math.inf] * ROWS
    for iteration, label in labels.items():
        row = next((row for row in range(ROWS) if taken[row] <= iteration), None)
        if row is None:
            continue
        axes.annotate(
            label, (iteration, 1.0), (2, 3 + LINE * row), color=_LABEL, fontsize=7,
            xycoords=axes.get_xaxis_transform(), textcoords="offset points",
        )  # fmt: skip
        taken[row] = iteration + point * LETTER * (len(label) + 1)
    return sum(end > -math.inf for end in taken)
