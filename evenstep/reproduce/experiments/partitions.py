"""`partitions`: five workers with two classes each, samples that migrate (section 3.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from evenstep.reproduce.experiment import Experiment, Progress, Settings, steps
from evenstep.reproduce.partition_study import (
    CASES,
    DIGITS_SIZES,
    PAPERS_SIZES,
    Study,
    train,
)
from evenstep.reproduce.partition_study import Result as Run
from evenstep.reproduce.result import Claim, Curve, Plot, Result, Table, beside

MIXED, SKEWED, MIGRATED, WEIGHED = CASES
PAPER = {MIXED: 0.92, MIGRATED: 0.92}
"""Test accuracy of ResNet-32 on CIFAR-10: the same with migrations as with mixed data."""
_SAME = 0.01
"""Accuracies closer than this are the same: two of the 261 test samples of the digits."""

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
                "Means over seeds; at the end is the mean of the last evaluations of "
                f"{study.updates} updates. i.i.d.: mixed partitions that stay where they are.",
            )
        ],
        [_plot(study, runs)],
        _claims(runs),
        [
            "The paper trains ResNet-32 on CIFAR-10 to 0.92; these are small nets, without --data "
            "on digits with an eighth of the paper's batch sizes: only the cases among each other "
            "can be compared.",
            "The paper does not say how much worse it gets without migrations. On digits, which "
            "can be told apart almost wholly, skew costs less and less as training goes on.",
        ],
        seeds=list(seeds),
    )


def _study(settings: Settings) -> Study:
    from evenstep.workloads.named import make_workload

    path = settings.data.cifar10
    if path is None or settings.quick:
        return Study(make_workload("mlp"), DIGITS_SIZES, settings.choose(120, 400))
    from evenstep.reproduce.small_net import cifar10

    optimizer = "sgd:learning_rate=0.05,momentum=0.9"
    return Study(cifar10(str(path)), PAPERS_SIZES, 160, optimizer)


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


def _claims(runs: Runs) -> list[Claim]:
    half = int(runs[MIXED][0].updates[-1]) // 2
    middle = {c: _mean([run.accuracy_after(half) for run in some]) for c, some in runs.items()}
    gap = max(run.gap for run in runs[MIGRATED])
    return [
        Claim(
            "as_good_as_mixed",
            "With migrations the accuracy is that of mixed data (they end "
            f"{100 * abs(_late(runs[MIGRATED]) - _late(runs[MIXED])):.1f} points apart).",
            abs(_late(runs[MIGRATED]) - _late(runs[MIXED])) < _SAME,
        ),
        Claim(
            "skew_costs",
            "Without migrations skewed data cost accuracy on the way (after half of the updates: "
            f"{middle[SKEWED]:.3f} against {middle[MIXED]:.3f}).",
            middle[SKEWED] < middle[MIXED] - _SAME,
        ),
        Claim(
            "bounded",
            f"The gap of traversals stays bounded by 2 (largest: {gap:.2f}, as samples move at "
            "boundaries only).",
            gap < 2.2,
        ),
        Claim(
            "weights_do_too",
            "Importance weights, which move nothing, are as good as migrations here.",
            abs(_late(runs[WEIGHED]) - _late(runs[MIGRATED])) < _SAME,
            of="evenstep",
        ),
    ]


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
