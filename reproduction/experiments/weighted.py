"""`weighted`: naive against weighted aggregation under LB-BSP (section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from evenstep.simulator.clusters.registry import make_cluster
from evenstep.simulator.engine.comparison import Comparison
from evenstep.simulator.engine.experiment import EVEN
from evenstep.simulator.engine.experiment import Experiment as Training
from evenstep.simulator.engine.simulation import Setup
from reproduction.experiment import Experiment, Progress, Settings
from reproduction.result import Claim, Curve, Plot, Result, Table, beside
from reproduction.training import Runs, Trained, train
from reproduction.wording import of_seeds

if TYPE_CHECKING:
    from evenstep.simulator.workloads.workload import Workload

BSP, WEIGHTED, NAIVE = "bsp", "lb-bsp", "lb-bsp:unweighted"
PAPER = {BSP: 0.59, NAIVE: 0.43}
"""Training accuracy of Inception-V3 on ImageNet after 20 epochs."""
EPOCHS = 20
_COMPARED_AFTER = 20
"""Updates after which parameters are compared."""
_ROUNDING = 1e-10
"""The rounding error of float64 after that many updates."""
_OTHER = 1e-4
"""Parameters further apart are others, by more than rounding."""
_WORSE = 1.01
"""A test loss is worse than another if it is this many times as large."""
_SAME = 0.005
"""Accuracies no further apart are the same: one of the 261 test samples of the digits."""


def run(settings: Settings, progress: Progress) -> Result:
    """Train for 20 epochs with every aggregation, and compare parameters to the last bit."""
    workload = _workload(settings)
    seeds = settings.choose((0, 1, 2), (0,))
    total = make_cluster("A:model=inception_v3").total
    updates = round(EPOCHS * workload.num_samples / total)
    rate = settings.choose(0.3, 0.01)
    comparison = Comparison(
        "A",
        workload,
        "inception_v3",
        optimizer=f"sgd:learning_rate={rate}",
        iterations=updates,
        evaluate_every=settings.choose(3, 20),
    )
    runs = train("weighted", comparison, f"{WEIGHTED},{NAIVE}", seeds, settings.parts, progress)
    differences = settings.parts.get(
        "parameters", partial(parameter_differences, updates=_COMPARED_AFTER)
    )
    return Result(
        [_table(workload, runs, rate, seeds), _equality(differences)],
        [_plot(workload, runs)],
        _claims(runs, differences, seeds),
        [
            "The paper's 0.43 and 0.59 are training accuracies of Inception-V3 on ImageNet; here "
            "it is test accuracy and loss of what the table names: only how the aggregations "
            "relate can be compared.",
        ],
        seeds=list(seeds),
    )


def _workload(settings: Settings) -> Workload:
    from evenstep.simulator.workloads.registry import make_workload

    if settings.quick:
        return make_workload("mlp")
    path = settings.data.cifar10
    return make_workload("inception_v3:norm=group", None if path is None else str(path))


def parameter_differences(updates: int) -> dict[str, float]:
    """Return how far parameters are from BSP's at the end, in float64, relative to the largest."""
    from evenstep.simulator.workloads.registry import make_workload

    workload, cluster = make_workload("mlp:dtype=float64"), make_cluster("A:4")
    ends = {}
    for label, setup, is_weighted in (
        (BSP, EVEN, True),
        (WEIGHTED, Setup("equal_finish"), True),
        (NAIVE, Setup("equal_finish"), False),
    ):
        training = Training("bsp", setup, "sgd:learning_rate=0.1", weighted=is_weighted)
        run = training.start(cluster, workload)
        for _ in run.advance(updates):
            pass
        ends[label] = np.concatenate([p.detach().numpy().ravel() for p in run.parameters])
    largest = np.abs(ends[BSP]).max()
    return {
        label: float(np.abs(ends[label] - ends[BSP]).max() / largest) for label in (WEIGHTED, NAIVE)
    }


def _table(workload: Workload, runs: Runs, rate: float, seeds: Sequence[int]) -> Table:
    return Table(
        f"{EPOCHS} epochs of {workload.name} under LB-BSP, with Inception-V3's times on Cluster-A",
        "virtual",
        [
            {
                "aggregation": label,
                **beside("accuracy", _mean([t.accuracy[-1] for t in some]), PAPER.get(label)),
                "accuracy, mean over the run": _mean([_mean(t.accuracy) for t in some]),
                "test loss": _mean([t.loss[-1] for t in some]),
            }
            for label, some in runs.items()
        ],
        f"Learning rate {rate}; {of_seeds('means', seeds)}.",
    )


def _equality(differences: dict[str, float]) -> Table:
    return Table(
        f"Parameters after {_COMPARED_AFTER} updates in float64: largest difference to BSP's / "
        "largest parameter",
        "virtual",
        [{"aggregation": label, "difference": value} for label, value in differences.items()],
        "A net with one hidden layer on digits, Cluster-A with four GPUs, the same samples in "
        "every iteration.",
    )


def _plot(workload: Workload, runs: Runs) -> Plot:
    return Plot(
        f"Test loss of {workload.name} under LB-BSP, first seed",
        "virtual",
        "updates",
        "test loss",
        [
            Curve(label, list(some[0].updates), list(some[0].loss), dashed=label == BSP)
            for label, some in runs.items()
        ],
    )


def _claims(runs: Runs, differences: dict[str, float], seeds: Sequence[int]) -> list[Claim]:
    naive, bsp = (_mean([trained.loss[-1] for trained in runs[label]]) for label in (NAIVE, BSP))
    apart = max(map(_apart, runs[BSP], runs[WEIGHTED]))
    return [
        Claim(
            "weighted_equals_bsp",
            "With weighted aggregation LB-BSP trains what BSP trains: parameters agree to "
            f"float64's rounding ({differences[WEIGHTED]:.1e}).",
            differences[WEIGHTED] < _ROUNDING,
            why=f"after {_COMPARED_AFTER} updates rounding leaves less than {_ROUNDING:.0e} of the "
            "largest parameter; what else it is, is not known",
        ),
        Claim(
            "same_accuracy",
            f"Weighted LB-BSP has BSP's accuracy at every evaluation, within {100 * _SAME:g} "
            f"points (here {100 * apart:.2f} at most, {_which(seeds)}).",
            apart <= _SAME,
            why=f"not known; in float64, with a smaller net, parameters are "
            f"{differences[WEIGHTED]:.1e} of the largest apart",
        ),
        Claim(
            "naive_differs",
            "Naive aggregation trains something else (parameters differ by "
            f"{differences[NAIVE]:.1e}).",
            differences[NAIVE] > _OTHER,
            why=f"not known; more than {_OTHER:.0e} of the largest parameter counts as else",
        ),
        Claim(
            "naive_worse",
            f"Naive aggregation is worse than BSP: a test loss of {naive:.3f} against {bsp:.3f} at "
            f"the end ({of_seeds('means', seeds)}).",
            naive > _WORSE * bsp,
            why=f"not known; {_WORSE:g} times BSP's loss and more counts as worse",
        ),
    ]


def _apart(ours: Trained, theirs: Trained) -> float:
    """Return the largest difference of two accuracies at the same evaluation."""
    return max(abs(a - b) for a, b in zip(ours.accuracy, theirs.accuracy, strict=True))


def _which(seeds: Sequence[int]) -> str:
    return f"with each of {len(seeds)} seeds" if len(seeds) > 1 else f"with seed {seeds[0]}"


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


EXPERIMENT = Experiment(
    "weighted",
    "naive and weighted aggregation of gradients from unequal batches",
    "section 3.4",
    "virtual",
    run,
    data=("cifar10",),
)
