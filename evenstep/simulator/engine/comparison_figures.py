"""The figures of a comparison: the results of each run, their ratios to BSP's, and intervals.

An update is the same thing under every scheme: n gradients, one for each worker of the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.simulator.engine.iteration import Fault
from evenstep.simulator.engine.run import Point, Run, smoothed
from evenstep.simulator.engine.scheme_specs import BSP, SchemeSpec
from evenstep.simulator.engine.simulation import median_figures

FIGURES = ("time_per_update", "updates_to_target", "time_to_target", "final_accuracy", "final_loss")
RATIOS = {"per_update": "time_per_update", "updates": "updates_to_target", "time": "time_to_target"}
"""The figures divided by BSP's: prefix of the ratio's name, and the figure."""
RANKED = ("time_over_bsp", "per_update_over_bsp", "updates_over_bsp", "final_accuracy")
"""The figures by which a scheme may be called the best."""
CONFIDENCE = 0.95
"""The least probability with which an interval must cover the median, to call a scheme the best."""


@dataclass(frozen=True)
class ComparisonFigures:
    """The results of one contender with one seed; None where not reached or not requested."""

    time_per_update: float
    """The average time of one update, in seconds."""
    num_counted: int
    """n: gradients in one update."""
    updates_to_target: int | None
    time_to_target: float | None
    final_accuracy: float | None
    final_loss: float | None
    updates: int
    """Number of updates."""
    time: float
    """Duration of the run, in seconds."""
    staleness: float
    """Average age of a gradient: changes of the parameters between its pull and its push."""
    dropped: int
    """Gradients that did not count."""
    faults: Sequence[Fault]
    """Workers and shards that failed, and the reactions."""
    points: Sequence[Point]

    @property
    def curve(self) -> dict[str, list[Any]]:
        """The evaluations over time, as columns."""
        accuracies = [point.evaluation.accuracy for point in self.points]
        return {
            "updates": [point.updates for point in self.points],
            "time": [point.time for point in self.points],
            "accuracy": [_finite(accuracy) for accuracy in accuracies],
            "smoothed": [_finite(accuracy) for accuracy in smoothed(accuracies)],
            "loss": [_finite(point.evaluation.loss) for point in self.points],
        }


def figures_of(run: Run, target: float | None, scored_from: int) -> ComparisonFigures:
    """Return the figures of a finished run."""
    reached = None if target is None else run.reached(target)
    last = run.points[-1].evaluation if run.points else None
    return ComparisonFigures(
        time_per_update=run.num_counted * run.per_update_time(scored_from),
        num_counted=run.num_counted,
        updates_to_target=reached.updates if reached else None,
        time_to_target=reached.time if reached else None,
        final_accuracy=_finite(last.accuracy) if last else None,
        final_loss=_finite(last.loss) if last else None,
        updates=len(run.times),
        time=run.times[-1],
        staleness=_mean(run.staleness),
        dropped=run.num_dropped,
        faults=tuple(run.faults),
        points=run.points,
    )


def ratio(value: float | None, by: float | None) -> float | None:
    """Divide figures; a figure that was not reached has no ratio.

    >>> ratio(3.0, 2.0), ratio(None, 2.0), ratio(3.0, None)
    (1.5, None, None)
    """
    return None if value is None or not by else value / by


def normalised(contender: SchemeSpec, seed: Mapping[str, ComparisonFigures]) -> dict[str, Any]:
    """Return a contender's figures in one seed, and their ratios to BSP's.

    FlexRR's are also divided by those of sequential BSP, as in the paper (section 5.3), if it ran.
    """
    figures = seed[contender.label]
    result: dict[str, Any] = {name: getattr(figures, name) for name in FIGURES}
    for base in (BSP, contender.compares_with) if contender.compares_with in seed else (BSP,):
        for name, figure in RATIOS.items():
            by = getattr(seed[base], figure)
            result[f"{name}_over_{base.replace('-', '_')}"] = ratio(getattr(figures, figure), by)
    for name in ("updates", "time", "staleness", "dropped"):
        result[name] = getattr(figures, name)
    return result


def summary(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the median of every figure over seeds, and the interval of the median.

    A figure that was not reached counts as infinite, so the median is None if most seeds did not
    reach it.

    >>> summary([{"seed": 0, "time": 3.0}, {"seed": 1, "time": None}, {"seed": 2, "time": 5.0}])
    {'medians': {'time': 5.0}, 'intervals': {'time': [3.0, None]}}
    """
    medians = median_figures(seeds)
    left_out = seeds_left_out(len(seeds))
    return {
        "medians": medians,
        "intervals": {
            name: _interval([seed[name] for seed in seeds], left_out) for name in medians
        },
    }


def seeds_left_out(num_seeds: int) -> int:
    """Return how many seeds an interval leaves out at each end: as many as confidence allows.

    >>> [seeds_left_out(num_seeds) for num_seeds in (1, 6, 9, 20)]
    [0, 0, 1, 5]
    """
    left_out = 0
    while coverage(num_seeds, left_out + 1) >= CONFIDENCE:
        left_out += 1
    return left_out


def coverage(num_seeds: int, left_out: int) -> float:
    """Return the probability that the seeds between those left out enclose the median.

    A seed is below the median of all possible seeds with a probability of 1/2, whatever the
    distribution; the median is missed if at most `left_out` seeds are on one of its sides.

    >>> coverage(1, 0), coverage(3, 0), coverage(6, 0)
    (0.0, 0.75, 0.96875)
    """
    missed = sum(math.comb(num_seeds, i) for i in range(left_out + 1))
    return max(0.0, 1 - math.ldexp(missed, 1 - num_seeds))


def best_schemes(schemes: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """Return the schemes that may be the best by a figure: one if the intervals say which.

    These are the scheme with the best median, and those whose intervals overlap with its own;
    schemes that have no figure in most seeds are left out.

    >>> bsp = {"scheme": "bsp", "medians": {"time_over_bsp": 1}, "intervals": {}}
    >>> asp = {"scheme": "asp", "medians": {"time_over_bsp": 0.4}, "intervals": {}}
    >>> bsp["intervals"]["time_over_bsp"], asp["intervals"]["time_over_bsp"] = [1, 1], [0.3, 0.9]
    >>> best_schemes([bsp, asp], "time_over_bsp")
    ['asp']
    """
    sign = -1.0 if name == "final_accuracy" else 1.0
    bounds = {
        scheme["scheme"]: sorted(
            math.inf if bound is None else sign * bound for bound in scheme["intervals"][name]
        )
        for scheme in schemes
        if scheme["medians"][name] is not None
    }
    if not bounds:
        return []
    medians = {scheme["scheme"]: scheme["medians"][name] for scheme in schemes}
    best = min(bounds, key=lambda label: sign * medians[label])
    return [label for label, (low, _) in bounds.items() if low <= bounds[best][1]]


def _interval(values: Sequence[float | None], left_out: int) -> list[float | None]:
    rising = sorted(math.inf if value is None else value for value in values)
    return [_finite(rising[left_out]), _finite(rising[-1 - left_out])]


def _finite(value: float) -> float | None:
    """Return a number that JSON can hold; None for a diverged model."""
    return value if math.isfinite(value) else None


def _mean(counts: Mapping[int, int]) -> float:
    values, weights = np.array(sorted(counts.items()), dtype=float).T
    return float(np.average(values, weights=weights))
