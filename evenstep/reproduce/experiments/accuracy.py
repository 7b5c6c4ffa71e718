"""`accuracy`: test accuracy over epochs under each scheme (Fig. 7), from the runs of Cluster-A."""

from __future__ import annotations

from collections.abc import Sequence

from evenstep.reproduce.end_to_end import (
    ASP,
    BALANCED,
    BSP,
    MODELS,
    SSP,
    Trainings,
    scale_of,
    trainings,
)
from evenstep.reproduce.experiment import Experiment, Progress, Settings, part_of
from evenstep.reproduce.result import Claim, Curve, Plot, Result, Row, Table, beside
from evenstep.reproduce.training import Trained

SHOWN = ("resnet32", "inception_v3")
"""The models of the paper's figure."""
_ENDS = {
    "resnet32": {BSP: "0.92", BALANCED: "0.92", ASP: "below 0.88", SSP: "below 0.88"},
    "inception_v3": {},
}
_EQUAL = 0.01
"""Accuracies that differ by less are the same: rounding, and a few test samples."""


def run(settings: Settings, progress: Progress) -> Result:
    """Show the accuracy of the trainings that `cluster-a` is made from."""
    done = [
        trainings(settings, model, part_of(progress, i, len(SHOWN)))
        for i, model in enumerate(SHOWN)
    ]
    return Result(
        [_table(trained) for trained in done],
        [_plot(trained) for trained in done],
        _claims(done),
        [
            "What is trained here (the title of each table says what, and for how many epochs) is "
            "no ResNet-32 on all of CIFAR-10: accuracies themselves cannot be compared, only how "
            "the schemes relate.",
            "Whether ASP and SSP end lower depends on the learning rate of a single gradient: with "
            "1/n of BSP's, as here, they need not; `cluster-a` shows further conditions.",
        ],
        seeds=list(scale_of(settings).seeds),
    )


def _table(done: Trainings) -> Table:
    rows: list[Row] = []
    for label, runs in done.runs.items():
        trained = runs[0]
        rows.append(
            {
                "scheme": label,
                **{
                    f"after {share:.0%} of the updates": _after(trained, share)
                    for share in (0.25, 0.5)
                },
                **beside("best accuracy", trained.best, _ENDS[done.model].get(label)),
                "virtual seconds": trained.time[-1],
            }
        )
    epochs = done.runs[BSP][0].updates[-1] / done.updates_per_epoch
    return Table(
        f"{MODELS[done.model]}: test accuracy in the course of {epochs:.0f} epochs",
        "virtual",
        rows,
        f"Gradients of {done.workload}.",
    )


def _after(trained: Trained, share: float) -> float:
    return trained.accuracy[round(share * (len(trained.accuracy) - 1))]


def _plot(done: Trainings) -> Plot:
    per_epoch = done.updates_per_epoch
    return Plot(
        f"{MODELS[done.model]}: test accuracy over epochs",
        "virtual",
        "epochs",
        "test accuracy",
        [
            Curve(
                label, [updates / per_epoch for updates in runs[0].updates], list(runs[0].accuracy)
            )
            for label, runs in done.runs.items()
        ],
    )


def _claims(done: Sequence[Trainings]) -> list[Claim]:
    pairs = [(d.runs[BSP][0].accuracy, d.runs[BALANCED][0].accuracy) for d in done]
    apart = max(abs(a - b) for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))
    behind = [
        max(d.runs[BSP][0].best, d.runs[BALANCED][0].best) - d.runs[scheme][0].best
        for d in done
        for scheme in (ASP, SSP)
    ]
    return [
        Claim(
            "same_curve",
            "LB-BSP has the accuracy of BSP, evaluation by evaluation (they differ by at most "
            f"{apart:.4f}).",
            apart <= _EQUAL,
        ),
        Claim(
            "stale_end_lower",
            "ASP and SSP end lower than BSP and LB-BSP (paper: below 0.88 against 0.92).",
            all(value > _EQUAL for value in behind),
            why="with 1/n of the learning rate for each gradient, staleness does little harm to "
            "what was trained here",
        ),
    ]


EXPERIMENT = Experiment(
    "accuracy",
    "test accuracy over epochs under BSP, ASP, SSP and LB-BSP",
    "Fig. 7, section 5.1",
    "virtual",
    run,
    data=("cifar10",),
    shares=True,
)
