"""The plot of `benchmarks.partitions`: the accuracy of each case over updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from evenstep.insight.plots.palette import LIGHT
from reproduction.partition_study import Result


def plot(path: Path, title: str, cases: Mapping[str, Sequence[Result]]) -> None:
    """Draw the median over seeds of each case, in a band from the least to the most."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for i, (case, runs) in enumerate(cases.items()):
        colour = LIGHT.nth(i)
        updates = runs[0].updates
        accuracy = np.array([run.accuracy for run in runs])
        axes.plot(updates, np.median(accuracy, axis=0), color=colour, label=case)
        low, high = accuracy.min(axis=0), accuracy.max(axis=0)
        axes.fill_between(updates, low, high, color=colour, alpha=0.12, linewidth=0)
        moments = sorted({at for run in runs for at in run.migrated_at})
        for j, at in enumerate(moments):
            label = "samples migrate" if j == 0 else None
            axes.axvline(at, color=colour, linestyle=":", linewidth=1, label=label)
    runs = [run for some in cases.values() for run in some]
    # The beginning, where all cases guess, would leave little room for the rest.
    late = np.array([run.accuracy[len(run.accuracy) // 10 :] for run in runs])
    axes.set_ylim(max(0.0, late.min() - 0.02), min(1.0, late.max() + 0.02))
    axes.set(xlabel="updates", ylabel="test accuracy", title=title)
    axes.title.set_fontsize("medium")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)
