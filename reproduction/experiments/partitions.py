"""`partitions`: five workers with two classes each, samples that migrate (section 3.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from evenstep.core import Floats
from reproduction.experiment import Experiment, Progress, Settings, steps
from reproduction.partition_study import (
    CASES,
    DIGITS_SIZES,
    PAPERS_SIZES,
    Study,
    train,
)
from reproduction.partition_study import Result as Run
from reproduction.result import Claim, Curve, Plot, Result, Table, beside
from reproduction.wording import of_seeds

MIXED, SKEWED, MIGRATED, WEIGHED = CASES
PAPER = {MIXED: 0.92, MIGRATED: 0.92}
"""Test accuracy of ResNet-32 on CIFAR-10: the same with migrations as with mixed data."""
_SAME = 0.01
"""Accuracies closer than this are the same: two of the 261 test samples of the digits."""

_ENOUGH_SEEDS = 5
"""With fewer, two standard errors say nothing about chance."""
_ROUNDING = 1e-9
"""A standard error below is none: the differences are equal."""

_UPDATES_PER_SAMPLE = 160 / 10_000
"""So that workers go through their partitions as often, however many pictures there are."""

_BEYOND = 0.1
"""How far the gap may get beyond its bound, as samples move at boundaries only."""

Runs = Mapping[str, Sequence[Run]]


def run(settings: Settings, progress: Progress) -> Result:
    """Train every case with every seed."""
    study = _study(settings)
    seeds = settings.choose((0, 1), tuple(range(10)))
    runs: dict[str, list[Run]] = {case: [] for case in CASES}
    for case, seed in steps(list(product(CASES, seeds)), progress):
        made = settings.parts.get(f"{case}/{seed}", partial(_train, study, case, seed))
        arrays = {name: np.array(made[name]) for name in ("updates", "accuracy", "loss")}
        runs[case].append(Run(**{**made, **arrays}))
    sizes = ", ".join(map(str, study.batch_sizes))
    return Result(
        [
            Table(
                f"{study.workload.name}, batches of {sizes}: test accuracy",
                "virtual",
                [_row(case, some) for case, some in runs.items()],
                f"{of_seeds('Means', seeds)}; at the end is the mean of the last evaluations of "
                f"{study.updates} updates. i.i.d.: mixed partitions that stay where they are.",
            )
        ],
        [_plot(study, runs)],
        _claims(runs, study.threshold),
        [
            "The paper trains ResNet-32 on CIFAR-10 to 0.92; these are small nets, without --data "
            "on digits with an eighth of the paper's batch sizes: only the cases among each other "
            "can be compared.",
            f"The paper does not say how much worse it gets without migrations. {_skew(runs)}",
        ],
        seeds=list(seeds),
    )


def _study(settings: Settings) -> Study:
    from evenstep.simulator.workloads.registry import make_workload

    path = settings.data.cifar10
    if path is None or settings.quick:
        return Study(make_workload("mlp"), DIGITS_SIZES, settings.choose(120, 400))
    from reproduction.small_net import cifar10

    workload, optimizer = cifar10(str(path)), "sgd:learning_rate=0.05,momentum=0.9"
    updates = round(workload.num_samples * _UPDATES_PER_SAMPLE)
    return Study(workload, PAPERS_SIZES, updates, optimizer)


def _train(study: Study, case: str, seed: int) -> dict[str, Any]:
    return asdict(train(study, case, seed))


def _row(case: str, runs: Sequence[Run]) -> dict[str, Any]:
    last = int(runs[0].updates[-1])
    return {
        "data": case,
        f"after {last // 4} updates": _mean([run.accuracy_after(last // 4) for run in runs]),
        f"after {last // 2} updates": _mean([run.accuracy_after(last // 2) for run in runs]),
        **beside("at the end", _late(runs), PAPER.get(case)),
        "largest gap of traversals": max(run.gap for run in runs),
        "samples moved": runs[0].num_moved,
        "fewest possible": runs[0].fewest if case == MIGRATED else None,
    }


def _plot(study: Study, runs: Runs) -> Plot:
    return Plot(
        f"Test accuracy on local partitions, {study.workload.name}",
        "virtual",
        "updates",
        "test accuracy, mean over seeds",
        [
            Curve(
                case, some[0].updates.tolist(), np.mean([r.accuracy for r in some], axis=0).tolist()
            )
            for case, some in runs.items()
        ],
        marks=[(float(at), "samples migrate") for at in runs[MIGRATED][0].migrated_at],
    )


def _claims(runs: Runs, threshold: float) -> list[Claim]:
    half = int(runs[MIXED][0].updates[-1]) // 2
    late = {case: np.array([run.late for run in some]) for case, some in runs.items()}
    middle = {
        case: np.array([run.accuracy_after(half) for run in some]) for case, some in runs.items()
    }
    gap = max(run.gap for run in runs[MIGRATED])
    return [
        Claim(
            "as_good_as_mixed",
            "With migrations the accuracy is that of mixed data (they end "
            f"{_points(late[MIGRATED] - late[MIXED])} points apart).",
            _same(late[MIGRATED] - late[MIXED]),
            why=f"{_chance(late[MIGRATED] - late[MIXED])}; {_moves(runs)}",
        ),
        Claim(
            "skew_costs",
            "Without migrations skewed data cost accuracy on the way (after half of the updates: "
            f"{middle[SKEWED].mean():.3f} against {middle[MIXED].mean():.3f}).",
            bool((middle[MIXED] - middle[SKEWED]).mean() > _SAME),
            why=f"less than {100 * _SAME:g} point counts as none; "
            f"{_chance(middle[SKEWED] - middle[MIXED])}",
        ),
        Claim(
            "bounded",
            f"With migrations the gap of traversals stays bounded by {threshold:g}, within "
            f"{_BEYOND:.0%} as samples move at boundaries only (largest: {gap:.2f}).",
            gap < (1 + _BEYOND) * threshold,
            why=_moves(runs),
        ),
        Claim(
            "weights_do_too",
            "Importance weights, which move nothing, are as good as migrations here (they end "
            f"{_points(late[WEIGHED] - late[MIGRATED])} points apart).",
            _same(late[WEIGHED] - late[MIGRATED]),
            of="evenstep",
            why=_chance(late[WEIGHED] - late[MIGRATED]),
        ),
    ]


def _same(apart: Floats) -> bool:
    return bool(abs(apart.mean()) < _SAME)


def _points(apart: Floats) -> str:
    return f"{100 * abs(apart.mean()):.1f}"


def _chance(apart: Floats) -> str:
    """Return a difference of accuracies, seed by seed, and where it can be said, if by chance."""
    error = float(apart.std(ddof=1)) / len(apart) ** 0.5
    found = (
        f"the difference over {len(apart)} seeds is {100 * apart.mean():+.1f} points, with a "
        f"standard error of {100 * error:.1f}"
    )
    if len(apart) < _ENOUGH_SEEDS or error < _ROUNDING:
        return found
    is_small = abs(apart.mean()) < 2 * error
    return f"{found}: {'it may be chance' if is_small else 'hardly chance; what from is not known'}"


def _moves(runs: Runs) -> str:
    """Return when samples moved, with the first seed."""
    migrated = runs[MIGRATED][0].migrated_at
    when = f"after updates {', '.join(map(str, migrated))}" if migrated else "never"
    return f"with the first seed samples moved {when}, of {runs[MIGRATED][0].updates[-1]}"


def _skew(runs: Runs) -> str:
    """Return the cost of skewed data during the training, in words."""
    last = int(runs[MIXED][0].updates[-1])
    quarter, half = (
        _mean([run.accuracy_after(at) for run in runs[MIXED]])
        - _mean([run.accuracy_after(at) for run in runs[SKEWED]])
        for at in (last // 4, last // 2)
    )
    end = _late(runs[MIXED]) - _late(runs[SKEWED])
    return (
        f"Here skew costs {100 * quarter:.1f} points of accuracy after a quarter of the updates, "
        f"{100 * half:.1f} after half of them and {100 * end:.1f} at the end."
    )


def _late(runs: Sequence[Run]) -> float:
    return _mean([run.late for run in runs])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


EXPERIMENT = Experiment(
    "partitions",
    "training on local partitions with two classes each, with and without migrations",
    "section 3.5",
    "virtual",
    run,
    data=("cifar10",),
)
