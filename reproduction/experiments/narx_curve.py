"""`narx-curve`: predicted and actual speed of one worker over 100 iterations (Fig. 10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.registry import make_cluster
from reproduction.experiment import Experiment, Progress, Settings, steps
from reproduction.result import Claim, Curve, Plot, Result, Row, Table
from reproduction.scoring import Scored, Scorer
from reproduction.window import Window

WORKER = "m4.2xlarge-0"
WINDOW = 100
SPIKE, CHANGE = 0.2, 0.1
"""Noise, and changes of the speed behind it, that are looked at: as shares."""
ERROR, FORESEEN = "error of the prediction / of a spike", "part of a change that was foreseen"
HALF = 0.5


def run(settings: Settings, progress: Progress) -> Result:
    """Follow NARX on one worker of Cluster-B, and of P, whose usage is more informative."""
    iterations, start = settings.choose((400, 200), (1500, 500))
    first = settings.choose(250, 1200)
    plots, rows = [], []
    for spec, name in steps([("B", "Cluster-B"), ("P", "scenario P")], progress):
        cluster = make_cluster(spec, None, iterations, seed=0)
        window = Window(start, iterations, "iteration")
        scored = Scorer(cluster, window).score(f"narx:start={start}")
        rows.append({"cluster": name, **_robustness(cluster, scored, start)})
        plots.append(_plot(name, cluster, scored, slice(first, first + WINDOW)))
    return Result(
        [
            Table(
                "Robust to what is random, quick to follow what is not",
                "virtual",
                rows,
                f"All workers, iterations {start} to {iterations - 1}, medians. The virtual clock "
                f"knows each speed without noise. A spike is noise of {SPIKE:.0%} and more, a "
                f"change one of {CHANGE:.0%} and more of the speed without noise from one "
                "iteration to the next. The paper shows all this as a picture only.",
            )
        ],
        plots,
        _claims(rows),
        [
            "This is a run of its own, not that of `cluster-b`: Alg. 1 with NARX alone, for "
            f"{iterations} iterations of ResNet-32's times, from which iterations {first} to "
            f"{first + WINDOW - 1} are shown; the paper shows 1200 to 1300 of its training.",
            "The paper's worker was shared with tasks that came and went on a real machine; here "
            "the speed follows the trace's levels, with assumed noise of 4 % and 1 % of spikes.",
        ],
        seeds=[0],
    )


def _claims(rows: Sequence[Row]) -> list[Claim]:
    spiky = [row for row in rows if row[ERROR] is None or row[ERROR] >= HALF]
    claims = [
        Claim(
            "robust",
            "At spikes the predicted speed fluctuates much less than the actual one (less than "
            "half as much, in the median, on Cluster-B and in scenario P).",
            not spiky,
            why="; ".join(_said(row, ERROR, "spikes") for row in spiky),
        )
    ]
    for name, row in zip(("prompt_on_the_trace", "prompt"), rows, strict=True):
        claims.append(
            Claim(
                name,
                "When the speed changes for a reason, the prediction promptly catches up (more "
                f"than half of the change in the same iteration, in the median, {row['cluster']}).",
                row[FORESEEN] is not None and row[FORESEEN] > HALF,
                why=_said(row, FORESEEN, "changes"),
            )
        )
    return claims


def _said(row: Row, figure: str, what: str) -> str:
    if row[figure] is None:
        return f"{row['cluster']} has none of these {what}"
    return f"{row['cluster']}: {figure} {row[figure]:.2f}, by {row[what]} {what}; why is not known"


def _robustness(cluster: Cluster, scored: Scored, start: int) -> dict[str, Any]:
    """Return what the prediction makes of spikes, and of changes."""
    iterations = range(len(scored.speeds))
    noise = np.array([cluster.conditions(k, 0.0).noise for k in iterations])
    without = scored.speeds * noise
    error = np.abs(scored.predicted / without - 1)[start:]
    # Noise makes times longer or shorter, so that speeds are divided by it.
    spike = np.abs(1 / noise - 1)[start:]
    change = np.abs(without[:-1] / without[1:] - 1)[start - 1 :]
    spiky, changed = spike >= SPIKE, change >= CHANGE
    caught = 1 - error[changed] / change[changed]
    return {
        "spikes": int(spiky.sum()),
        ERROR: float(np.median(error[spiky] / spike[spiky])) if spiky.any() else None,
        "changes": int(changed.sum()),
        FORESEEN: float(np.median(caught)) if caught.size else None,
    }


def _plot(name: str, cluster: Cluster, scored: Scored, shown: slice) -> Plot:
    worker = list(cluster.workers).index(WORKER)
    at = list(range(shown.start, shown.stop))
    return Plot(
        f"{name}: speed of {WORKER}",
        "virtual",
        "iteration",
        "samples per second",
        [
            Curve("actual", at, scored.speeds[shown, worker].tolist()),
            Curve("predicted (NARX)", at, scored.predicted[shown, worker].tolist()),
        ],
    )


EXPERIMENT = Experiment(
    "narx-curve",
    "predicted and actual speed of one worker",
    "Fig. 10, section 5.4",
    "virtual",
    run,
)
