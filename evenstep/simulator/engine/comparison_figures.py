"""The figures of a comparison: the results of each run, and their ratios to BSP's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.simulator.engine.iteration import Fault
from evenstep.simulator.engine.run import Point, Run
from evenstep.simulator.engine.scheme_specs import BSP, SEQUENTIAL_BSP, SchemeSpec
from evenstep.simulator.engine.simulation import median_figures

FIGURES = ("per_update_time", "updates_to_target", "time_to_target", "final_accuracy", "final_loss")
RATIOS = {"per_update": "per_update_time", "updates": "updates_to_target", "time": "time_to_target"}
"""The figures divided by BSP's: prefix of the ratio's name, and the figure."""


@dataclass(frozen=True)
class ComparisonFigures:
    """The results of one contender with one seed; None where not reached or not requested."""

    per_update_time: float
    """The average time per gradient, in seconds."""
    updates_to_target: int | None
    time_to_target: float | None
    final_accuracy: float | None
    final_loss: float | None
    updates: int
    """Number of updates; one is n gradients."""
    time: float
    """Duration of the run, in seconds."""
    staleness: float
    """Average age of a gradient, in updates of the server."""
    dropped: int
    """Gradients that did not count."""
    faults: Sequence[Fault]
    """Workers and shards that failed, and the reactions."""
    points: Sequence[Point]

    @property
    def curve(self) -> dict[str, list[Any]]:
        """The evaluations over time, as columns."""
        return {
            "updates": [point.updates for point in self.points],
            "time": [point.time for point in self.points],
            "accuracy": [_finite(point.evaluation.accuracy) for point in self.points],
            "loss": [_finite(point.evaluation.loss) for point in self.points],
        }


def figures_of(run: Run, target: float | None, scored_from: int) -> ComparisonFigures:
    """Return the figures of a finished run."""
    reached = None if target is None else run.reached(target)
    last = run.points[-1].evaluation if run.points else None
    return ComparisonFigures(
        per_update_time=run.per_update_time(scored_from),
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

    FlexRR's are also divided by those of sequential BSP, as in the paper (section 5.3).
    """
    figures = seed[contender.label]
    result: dict[str, Any] = {name: getattr(figures, name) for name in FIGURES}
    is_sequential = contender.compares_with == SEQUENTIAL_BSP
    for base in (BSP, SEQUENTIAL_BSP) if is_sequential else (BSP,):
        for name, figure in RATIOS.items():
            by = getattr(seed[base], figure)
            result[f"{name}_over_{base.replace('-', '_')}"] = ratio(getattr(figures, figure), by)
    for name in ("updates", "time", "staleness", "dropped"):
        result[name] = getattr(figures, name)
    return result


def summary(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the median and the range of every figure over seeds.

    A figure that was not reached counts as infinite, so the median is None if most seeds did not
    reach it.

    >>> summary([{"seed": 0, "time": 3.0}, {"seed": 1, "time": None}, {"seed": 2, "time": 5.0}])
    {'medians': {'time': 5.0}, 'spread': {'time': [3.0, None]}}
    """
    medians = median_figures(seeds)
    return {
        "medians": medians,
        "spread": {name: _spread([seed[name] for seed in seeds]) for name in medians},
    }


def _spread(values: Sequence[float | None]) -> list[float | None]:
    known = [value for value in values if value is not None]
    if not known:
        return [None, None]
    return [min(known), max(known) if len(known) == len(values) else None]


def _finite(value: float) -> float | None:
    """Return a number that JSON can hold; None for a diverged model."""
    return value if math.isfinite(value) else None


def _mean(counts: Mapping[int, int]) -> float:
    values, weights = np.array(sorted(counts.items()), dtype=float).T
    return float(np.average(values, weights=weights))
