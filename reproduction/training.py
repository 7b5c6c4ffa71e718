"""Trainings under several schemes on one cluster: real gradients, in virtual time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from evenstep.simulator.engine.comparison import Comparison
from evenstep.simulator.engine.comparison_figures import ComparisonFigures, ratio
from evenstep.simulator.engine.scheme_specs import SchemeSpec, parse_scheme_specs
from reproduction.experiment import Progress, part_of, steps, words
from reproduction.parts import Parts


@dataclass(frozen=True)
class Trained:
    """The training of one scheme with one seed; its curve is empty if only times were needed."""

    per_update: float
    """Seconds per gradient that the server received."""
    updates: Sequence[int]
    """After how many updates the model was evaluated."""
    time: Sequence[float]
    accuracy: Sequence[float]
    loss: Sequence[float]
    num_workers: int
    staleness: float

    def reached(self, target: float) -> tuple[int, float] | None:
        """Return the updates and the seconds to an accuracy, if it was reached."""
        for updates, time, accuracy in zip(self.updates, self.time, self.accuracy, strict=True):
            if accuracy >= target:
                return updates, time
        return None

    @property
    def best(self) -> float:
        return max(self.accuracy)


Runs = Mapping[str, Sequence[Trained]]
"""Label of a contender: its runs, one per seed."""


def train(
    what: str,
    comparison: Comparison,
    schemes: str,
    seeds: Sequence[int],
    parts: Parts,
    progress: Progress,
    known: Runs | None = None,
) -> Runs:
    """Run every scheme with every seed; runs that `parts` has, or that are known, are not made."""
    known = known or {}
    contenders = {contender.label: contender for contender in parse_scheme_specs(schemes)}
    work = [(what, label, seed) for label in contenders if label not in known for seed in seeds]
    runs = {label: list(known.get(label, [])) for label in contenders}
    for i, each in enumerate(steps(work, progress)):
        _, label, seed = each
        tell = partial(_tell, part_of(progress, i, len(work)), words(each))
        made = parts.get(
            f"{what}/{label}/{seed}/{_digest(comparison)}",
            partial(_train, comparison, contenders[label], seed, tell),
        )
        # JSON has no infinity, which is the loss of a model that diverged.
        loss = [np.inf if value is None else value for value in made["loss"]]
        runs[label].append(Trained(**{**made, "loss": loss}))
    return runs


def _digest(comparison: Comparison) -> str:
    """Return a short name for all settings of a training but scheme and seed."""
    workload = comparison.workload and comparison.workload.name
    how = {**vars(comparison), "workload": workload, "engine": comparison.engine.clock}
    return hashlib.sha256(repr(how).encode()).hexdigest()[:12]


def _tell(progress: Progress, what: str, updates: int, of: int) -> None:
    progress(updates / of, f"{what}: update {updates} of {of}")


def _train(
    comparison: Comparison, contender: SchemeSpec, seed: int, tell: Callable[[int, int], None]
) -> dict[str, Any]:
    cluster = comparison.make_cluster(seed, contender)
    most = comparison.num_updates(cluster)
    figures = comparison.run(contender, seed, lambda made: tell(made.updates, most))
    return asdict(_trained(figures, cluster.num_workers))


def _trained(figures: ComparisonFigures, num_workers: int) -> Trained:
    # A model that diverged has neither accuracy nor loss; it classifies nothing correctly.
    curve = figures.curve
    return Trained(
        figures.time_per_update / figures.num_counted,
        curve["updates"],
        curve["time"],
        [0.0 if value is None else value for value in curve["accuracy"]],
        [np.inf if value is None else value for value in curve["loss"]],
        num_workers,
        figures.staleness,
    )


def over(runs: Runs, base: str, figure: str, target: float = 1.0) -> dict[str, float | None]:
    """Return the medians over seeds of a figure over that of `base`, in the same seed.

    `per_update`, or to the target `updates` or `time`; not reached counts as later than all.
    """
    ratios = {
        label: [
            ratio(_figure(trained, figure, target), _figure(by, figure, target))
            for trained, by in zip(some, runs[base], strict=True)
        ]
        for label, some in runs.items()
    }
    return {label: _median(some) for label, some in ratios.items()}


def missed(runs: Runs, labels: Iterable[str], target: float) -> list[str]:
    """Return the schemes that miss the target, in the median over seeds."""
    times = {
        label: [_figure(trained, "time", target) for trained in runs[label]] for label in labels
    }
    return [label for label, some in times.items() if _median(some) is None]


def _figure(trained: Trained, figure: str, target: float) -> float | None:
    if figure == "per_update":
        return trained.per_update
    found = trained.reached(target)
    if found is None:
        return None
    # Before the first update all are at zero; one update is the least that has a ratio.
    return max(found[0], 1) if figure == "updates" else found[1]


def _median(values: Sequence[float | None]) -> float | None:
    median = float(np.median([np.inf if value is None else value for value in values]))
    return median if np.isfinite(median) else None
