"""`cluster-b`: iteration time of redundant execution, SSP, FlexRR and LB-BSP on CPUs (Fig. 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from evenstep.simulator.clusters.cluster_b import HOUR, LEVEL
from evenstep.simulator.engine.comparison import Comparison
from reproduction.claims.cluster_b import (
    BACKUP,
    FLEXRR,
    SEQUENTIAL,
    SSP,
    Ratios,
    base_of,
    claims_on_b,
)
from reproduction.experiment import Experiment, Progress, Settings, part_of
from reproduction.real_load import LEARNS_FROM, for_real
from reproduction.real_load_run import BEST_OF, BSP, NARX
from reproduction.result import Curve, Plot, Result, Row, Table, beside
from reproduction.scheme_times import Times, over, time_schemes, window_after
from reproduction.training import train
from reproduction.window import Window
from reproduction.wording import of_seeds

if TYPE_CHECKING:
    from evenstep.simulator.workloads.workload import Workload

TITLES = {"svm": "SVM", "resnet32": "ResNet-32"}
PAPER = {"svm": 0.38, "resnet32": 0.42}
"""Iteration time of LB-BSP over BSP's: speedups of 62 % and 58 %."""
ORACLE = "lb-bsp:oracle"
_NUM_WORKERS = 32
_SHARE = 0.1
"""Of the samples, in every iteration of the SVM."""


@dataclass(frozen=True)
class Scale:
    """How much is run."""

    learns_from: int
    """Iterations that NARX learns from; the window begins behind them."""
    seconds: float
    """Of the trace, the same for all schemes."""
    trained_for: int
    """Updates with the SVM's real gradients."""
    seeds: Sequence[int]
    overheads: Sequence[float]

    @property
    def narx(self) -> str:
        """The label of LB-BSP with NARX."""
        return NARX if self.learns_from == LEARNS_FROM else f"{NARX}:start={self.learns_from}"

    @property
    def schemes(self) -> list[str]:
        return [SEQUENTIAL, BACKUP, SSP, FLEXRR, self.narx, BEST_OF, ORACLE, "asp"]


FULL = Scale(LEARNS_FROM, HOUR, 600, (0, 1, 2), (0.0, 0.03, 0.05, 0.1, 0.15, 0.2))
QUICK = Scale(100, LEVEL, 25, (0,), (0.0, 0.05, 0.2))


def run(settings: Settings, progress: Progress) -> Result:
    """Compare the schemes for both models, FlexRR by its assumed overhead, and two real workers."""
    scale = settings.choose(QUICK, FULL)
    workload = _svm(settings)
    share = round(_SHARE * workload.num_samples / _NUM_WORKERS)
    comparisons = {
        "svm": Comparison("B", total=_NUM_WORKERS * share),
        "resnet32": Comparison("B"),
    }
    # The SVM's iterations are short: there are thousands in an hour, and one seed is enough.
    seeds = {"svm": scale.seeds[:1], "resnet32": scale.seeds}
    windows = {
        model: window_after(comparison, scale.narx, scale.learns_from, seeds[model], scale.seconds)
        for model, comparison in comparisons.items()
    }

    def time(what: str, model: str, schemes: Sequence[str], part: int) -> Times:
        how = (comparisons[model], ",".join(schemes), windows[model], seeds[model], settings.parts)
        return time_schemes(what, *how, part_of(progress, part, 5))

    times = {model: time(model, model, scale.schemes, i) for i, model in enumerate(comparisons)}
    flexrrs = [f"flexrr:monitoring={o:g},moving={o:g}" for o in scale.overheads]
    by_overhead = time("overheads", "resnet32", [SEQUENTIAL, *flexrrs], 2)
    accuracy = _train(settings, scale, comparisons["svm"], workload, part_of(progress, 3, 5))
    ratios = Ratios(
        {
            model: {label: over(some, label, base_of(label)) for label in some}
            for model, some in times.items()
        },
        scale.narx,
        {
            o: over(by_overhead, label, SEQUENTIAL)
            for o, label in zip(scale.overheads, flexrrs, strict=True)
        },
    )
    real = for_real(settings, part_of(progress, 4, 5))
    return Result(
        [
            *(
                _table(
                    model,
                    times[model],
                    ratios,
                    _note(windows[model], scale, seeds[model]),
                    accuracy if model == "svm" else None,
                )
                for model in TITLES
            ),
            _overheads(ratios),
            *real.tables,
        ],
        [_plot(ratios), _overhead_plot(ratios), *real.plots],
        [*claims_on_b(ratios), *real.claims],
        [*_differences(workload, share, scale), *real.differences],
        seeds=list(scale.seeds),
    )


def _svm(settings: Settings) -> Workload:
    from evenstep.simulator.workloads.registry import make_workload

    path = settings.data.urls
    return make_workload("svm", None if path is None or settings.quick else str(path))


def _train(
    settings: Settings, scale: Scale, times: Comparison, workload: Workload, progress: Progress
) -> dict[str, float]:
    """Return the SVM's accuracy after some updates; gradients would take hours in all seconds.

    NARX is trained with where it learns within them.
    """
    comparison = replace(
        times,
        workload=workload,
        optimizer="sgd:learning_rate=0.1",
        iterations=scale.trained_for,
        evaluate_every=scale.trained_for,
    )
    learns = scale.trained_for > scale.learns_from
    schemes = [scheme for scheme in scale.schemes if learns or scheme != scale.narx]
    runs = train(
        "svm-gradients", comparison, ",".join(schemes), scale.seeds[:1], settings.parts, progress
    )
    return {label: trained.accuracy[-1] for label, (trained,) in runs.items()}


def _table(
    model: str, times: Times, ratios: Ratios, note: str, accuracy: Mapping[str, float] | None = None
) -> Table:
    papers = {BSP: 1.0, SEQUENTIAL: 1.0, ratios.narx: PAPER[model]}
    rows: list[Row] = []
    for label, ratio in ratios.of[model].items():
        row = {
            "scheme": label,
            **beside("iteration time / BSP", ratio, papers.get(label)),
            "divided by": base_of(label),
            "updates": float(np.median([timed.updates for timed in times[label]])),
        }
        rows.append(row if accuracy is None else {**row, "accuracy": accuracy.get(label)})
    return Table(f"{TITLES[model]} on Cluster-B", "virtual", rows, note)


def _note(window: Window, scale: Scale, seeds: Sequence[int]) -> str:
    part = "all of its hour" if scale.seconds == HOUR else f"{scale.seconds:g} s of its hour"
    return (
        f"{_NUM_WORKERS} workers on a Google trace, which runs by the clock: all schemes over the "
        f"same seconds of it, {window.start:g} to {window.end:g}, {part}, before which NARX has "
        f"learned from {scale.learns_from} iterations. Iteration time is these seconds over the "
        f"updates in them, at the edges in part; {of_seeds('medians', seeds)}. The paper prints "
        "two of these figures, and that LB-BSP is up to 38.7 % better than FlexRR."
    )


def _overheads(ratios: Ratios) -> Table:
    return Table(
        "FlexRR by its assumed overhead, times of ResNet-32",
        "virtual",
        [
            {"monitoring, and moving": f"{overhead:.0%}", "iteration time / sequential BSP": value}
            for overhead, value in ratios.overheads.items()
        ],
        "Over the seconds of the table before. "
        "Monitoring makes every sample so much longer; moving is charged, as a share of its batch, "
        "to each worker that hands samples over or takes some.",
    )


def _plot(ratios: Ratios) -> Plot:
    labels = [label for label in ratios.of["svm"] if label != SEQUENTIAL]
    names = {ratios.narx: "LB-BSP, NARX", BEST_OF: "LB-BSP, best_of", ORACLE: "LB-BSP, oracle"}
    return Plot(
        "Iteration time over BSP's (FlexRR: sequential BSP's)",
        "virtual",
        "",
        "share",
        [
            Curve(
                TITLES[model],
                [names.get(label, label) for label in labels],
                [of[label] for label in labels],
            )
            for model, of in ratios.of.items()
        ],
        bars=True,
    )


def _overhead_plot(ratios: Ratios) -> Plot:
    at = list(ratios.overheads)
    balanced = ratios.of["resnet32"][ratios.narx]
    return Plot(
        "FlexRR against LB-BSP, by the overhead assumed of FlexRR",
        "virtual",
        "monitoring, and moving, as shares",
        "iteration time / (sequential) BSP",
        [
            Curve("FlexRR", at, list(ratios.overheads.values())),
            Curve("LB-BSP, NARX", at, [balanced] * len(at), dashed=True),
        ],
    )


def _differences(workload: Workload, share: int, scale: Scale) -> list[str]:
    return [
        "Speeds and noise of the instances are assumed (docs/clusters.md), and the machines of the "
        "trace are others than the paper's: how much there is to gain over BSP depends on the "
        "slowest one.",
        f"The SVM is trained on {workload.num_samples:,} samples ({workload.name}), the paper's on "
        f"those of 2.4 million URLs. An iteration's 10 % are {share} per worker here, so that one "
        f"sample is {1 / share:.1%} of a batch. Its accuracy is of runs of their own, "
        f"{scale.trained_for} updates with real gradients.",
        "How fast the instances are with an SVM is not known: both models have the same assumed "
        "speeds, and only ratios to BSP are shown.",
        "The paper does not say over which part of its hour schemes were compared.",
        "FlexRR is emulated, in the paper too; what its monitoring and moving cost there is not "
        "said.",
    ]


EXPERIMENT = Experiment(
    "cluster-b",
    "iteration time under redundant execution, SSP, FlexRR and LB-BSP on 32 CPU workers",
    "Fig. 9, section 5.3",
    "virtual",
    run,
    data=("urls",),
    also=("measured",),
)
