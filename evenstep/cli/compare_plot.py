"""The picture of a comparison: accuracy over time and over updates, and the ratios to BSP.

Lines and bars are medians over seeds; bands and black lines are the intervals of the medians.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenstep.cli.compare_view import HIGHER, LOWER, percent, verdicts, what_ran
from evenstep.core import Floats
from evenstep.insight.plots.drawing import drawing, save
from evenstep.insight.plots.palette import LIGHT
from evenstep.insight.plots.plot_data import readable
from evenstep.simulator.engine.comparison_figures import RATIOS, seeds_left_out
from evenstep.simulator.engine.scheme_specs import BSP

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

_WIDTH = 860.0
_HEAD, _CURVES, _BAR, _BARS, _LINE = 36.0, 300.0, 17.0, 85.0, 15.0
"""Heights in points: the title, the curves, a bar, the frame of the bars, a line of text."""
_COLOURS = (LIGHT.plain, *LIGHT.series)
"""Colours in the order of the schemes, of which BSP is the first; repeated if there are more."""
_LONGEST = 1.25
"""Largest end of the time axis, as a multiple of BSP's run."""
_SHOWN = 5
"""Range of the accuracy axis, as a multiple of the best model's error."""
_BELOW = 0.9
"""Largest start of the accuracy axis, as a fraction of the target."""
_LARGEST = 2.0
"""Largest end of the ratio axis."""
_MARGIN = 1.15
"""Length of the ratio axis over its largest value, with room for a number."""
_TITLES = {
    "per_update_over_bsp": "time per update / BSP",
    "updates_over_bsp": "updates to {target} / BSP",
    "time_over_bsp": "time to {target} / BSP",
}

Scheme = Mapping[str, Any]


def plot_comparison(result: Mapping[str, Any], path: str) -> None:
    """Draw the result of a comparison into a `.png` or `.svg` file."""
    with drawing({}):
        save(_figure(result), Path(path))


def _figure(result: Mapping[str, Any]) -> Figure:
    from matplotlib.figure import Figure

    settings, schemes = result["settings"], result["schemes"]
    trained = settings["workload"] is not None
    title, *lines = [*what_ran(settings), *verdicts(result).values()]
    bars = _BARS + _BAR * len(schemes)
    head = _HEAD + _LINE * len(lines)
    height = head + bars + (_CURVES if trained else 0.0)
    figure = Figure(figsize=(_WIDTH / 72, height / 72))
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - head / height))
    below: FigureBase = figure
    if trained:
        (above,), (below,) = figure.subfigures(2, 1, squeeze=False, height_ratios=(_CURVES, bars))
        _draw_curves(above.subplots(1, 2, sharey=True, width_ratios=(1.25, 1)), result)
    wanted = list(_TITLES)[: 1 if settings["target"] is None else len(_TITLES)]
    panels = below.subplots(1, len(wanted), sharey=True, squeeze=False)[0]
    target = "" if settings["target"] is None else percent(settings["target"])
    for axes, name in zip(panels, wanted, strict=True):
        best = (result["best"] or {}).get(name, [])
        _draw_bars(axes, schemes, name, best[0] if len(best) == 1 else None)
        axes.set_title(_TITLES[name].format(target=target))
    top = 1 - 8 / height
    figure.text(0.01, top, readable(title, 130), va="top", fontsize=11, fontweight="bold")
    for i, line in enumerate(lines):
        at = top - (19 + _LINE * i) / height
        figure.text(0.01, at, readable(line, 150), va="top", color="#555555" if i == 0 else "black")
    return figure


def _draw_curves(panels: Sequence[Axes], result: Mapping[str, Any]) -> None:
    settings, schemes = result["settings"], result["schemes"]
    over_time, over_updates = panels
    for i, scheme in enumerate(schemes):
        curve = median_curve(scheme["seeds"])
        style: dict[str, Any] = {
            "color": _colour(i),
            "label": readable(scheme["scheme"], 32),
            "linewidth": 2.2 if scheme["scheme"] == BSP else 1.4,
        }
        for axes, along in ((over_time, curve["time"]), (over_updates, curve["updates"])):
            axes.plot(along, curve["accuracy"], **style)
            if len(scheme["seeds"]) > 1:
                axes.fill_between(
                    along, curve["low"], curve["high"], color=_colour(i), alpha=0.15, linewidth=0
                )
    longest = {
        scheme["scheme"]: max(seed["time"] for seed in scheme["seeds"]) for scheme in schemes
    }
    end = min(max(longest.values()), _LONGEST * longest[BSP])
    over_time.set_xlim(0, end)
    over_updates.set_xlim(left=0)
    over_time.set_title("Accuracy over time")
    over_updates.set_title("Accuracy over updates")
    beyond = [label for label, time in longest.items() if time > end]
    remark = f"; further: {readable(', '.join(beyond), 40)}" if beyond else ""
    over_time.set_xlabel(f"seconds ({settings['time']}){remark}")
    over_updates.set_xlabel(f"updates ({settings['num_workers']} gradients each)")
    over_time.set_ylabel(f"mean accuracy of {settings['smoothed_over']} evaluations ({HIGHER})")
    best = max(max(median_curve(scheme["seeds"])["accuracy"]) for scheme in schemes)
    for axes in panels:
        axes.set_ylim(lowest_shown(best, settings["target"]), 1)
        if settings["target"] is not None:
            axes.axhline(settings["target"], color=LIGHT.rule, linewidth=0.8, linestyle=(0, (4, 3)))
    over_updates.legend(loc="lower right")


def lowest_shown(best: float, target: float | None) -> float:
    """Return the start of the accuracy axis: where schemes differ, but below the target.

    The beginning of all curves is steep and similar.

    >>> lowest_shown(best=0.75, target=None), lowest_shown(best=0.9, target=0.5)
    (0.0, 0.45)
    """
    differ = max(0.0, 1 - _SHOWN * (1 - best))
    return differ if target is None else min(differ, _BELOW * target)


def median_curve(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Floats]:
    """Return the medians over seeds, point by point, up to the end of the shortest curve.

    The accuracy is the smoothed one; `low` and `high` are the ends of its interval.

    >>> points = {"updates": [0, 5], "time": [0.0, 2.0], "smoothed": [0.1, 0.5]}
    >>> later = {"updates": [0, 5, 10], "time": [0.0, 4.0, 6.0], "smoothed": [0.1, 0.7, 0.9]}
    >>> median_curve([{"curve": points}, {"curve": later}])["time"]
    array([0., 3.])
    """
    length = min(len(seed["curve"]["time"]) for seed in seeds)
    updates, time, accuracy = (
        np.array([seed["curve"][name][:length] for seed in seeds], dtype=float)
        for name in ("updates", "time", "smoothed")
    )
    rising, left_out = np.sort(accuracy, axis=0), seeds_left_out(len(seeds))
    return {
        "updates": np.median(updates, axis=0),
        "time": np.median(time, axis=0),
        "accuracy": np.median(accuracy, axis=0),
        "low": rising[left_out],
        "high": rising[-1 - left_out],
    }


def _draw_bars(axes: Axes, schemes: Sequence[Scheme], name: str, best: str | None) -> None:
    """Draw one bar for each scheme, with the interval of its median; the first is at the top."""
    values = [scheme["medians"][name] for scheme in schemes]
    highs = [scheme["intervals"][name][1] for scheme in schemes]
    end = min(max([1.0, *(value for value in [*values, *highs] if value is not None)]), _LARGEST)
    for i, (scheme, value) in enumerate(zip(schemes, values, strict=True)):
        if value is None:
            reached = scheme["medians"][RATIOS[name.removesuffix("_over_bsp")]] is not None
            text = "no ratio: not reached by BSP" if reached else "not reached"
            axes.text(0.02 * end, i, text, va="center", fontsize=8, color=LIGHT.rule)
            continue
        axes.barh(i, value, height=0.7, color=_colour(i), alpha=0.75)
        low, high = scheme["intervals"][name]
        if low != high:
            # Not reached in some seeds: the interval has no upper end.
            right = 2 * _MARGIN * end if high is None else high
            axes.plot([low, right], [i, i], color="black", linewidth=1.0, marker="|", markersize=5)
        text = f"{value:.2f}, best" if scheme["scheme"] == best else f"{value:.2f}"
        _draw_value(axes, i, text, value, value if high is None else max(value, high), end)
    axes.axvline(1.0, color=LIGHT.rule, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.5)
    axes.set_xlabel(LOWER)
    axes.set_xlim(0, _MARGIN * end)
    axes.set_yticks(range(len(schemes)), [readable(scheme["scheme"], 32) for scheme in schemes])
    axes.set_ylim(len(schemes) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def _draw_value(axes: Axes, row: int, text: str, value: float, right: float, end: float) -> None:
    """Write a value after its bar, or into a bar that is longer than the axis."""
    if value > end:
        at = (_MARGIN - 0.02) * end
        axes.text(at, row, f"{text} »", va="center", fontsize=8, ha="right", color="white")
        return
    at = min(right, end) + 0.02 * end
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    axes.text(at, row, text, va="center", fontsize=8, bbox=behind)


def _colour(i: int) -> str:
    return _COLOURS[i % len(_COLOURS)]
