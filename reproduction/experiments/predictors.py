"""`predictors`: RMSE and iteration time of the paper's six predictors (Table 3) and ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from evenstep.core.short_form import parse_spec
from evenstep.simulator.clusters.cluster_b import HOUR, LEVEL
from evenstep.simulator.clusters.registry import make_cluster
from evenstep.simulator.clusters.scenarios import CPU_KINDS
from reproduction.claims.predictors import (
    ALONE,
    CLUSTERS,
    FORMER,
    NARX,
    PAPER,
    Scores,
    claims_of_predictors,
    differences_of_predictors,
)
from reproduction.experiment import Experiment, Progress, Settings, steps
from reproduction.result import Curve, Plot, Result, Row, Table, beside
from reproduction.sampled_cluster_b import draw_cluster
from reproduction.scoring import Scorer, learning_ends
from reproduction.window import Window
from reproduction.wording import of_seeds

PREDICTORS = (*PAPER, ALONE, FORMER, "kalman", "best_of")
_FORMER_SEED = 1000
"""How far the seed of a former run is from the one that is scored."""


@dataclass(frozen=True)
class Scale:
    """How much is run."""

    num_workers: int | None
    """Of the scenarios."""
    iterations: int
    """Of the scenarios."""
    start: int
    """The iteration at which models are first trained, and after which scoring begins."""
    seconds: float
    """Of the trace, that are scored."""
    seeds: Sequence[int]
    google: Path | None = None
    """The usage of all machines of the trace, to draw some for each seed; None: always the same."""
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Cluster: predictors that take long on it."""


FULL = Scale(None, 1500, 500, HOUR, (0, 1, 2))
_TWO = tuple(name for name in PREDICTORS if name not in ("ema", NARX))
QUICK = Scale(
    8,
    400,
    200,
    3 * LEVEL,
    (0,),
    left_out={"B": ("arima", "rnn", "lstm"), "S": _TWO, "M": _TWO},
)


def run(settings: Settings, progress: Progress) -> Result:
    """Score every predictor on every cluster."""
    scale = settings.choose(QUICK, replace(FULL, google=settings.data.google))
    missing = () if find_spec("statsmodels") else ("arima",)
    work = [
        (cluster, predictor, seed)
        for cluster in CLUSTERS
        for seed in scale.seeds
        for predictor in PREDICTORS
        if predictor not in (*missing, *scale.left_out.get(cluster, ()))
    ]
    scorers: dict[tuple[str, int], Scorer] = {}
    figures = {
        part: settings.parts.get("/".join(map(str, part)), partial(_score, scorers, scale, *part))
        for part in steps(work, progress)
    }
    scores = Scores(
        {
            (cluster, predictor): _median([figures[cluster, predictor, s] for s in scale.seeds])
            for cluster, predictor, _ in work
        }
    )
    return Result(
        [_table(cluster, scores, scale) for cluster in CLUSTERS],
        [_plot(scores)],
        claims_of_predictors(scores),
        [
            *_DIFFERENCES,
            *differences_of_predictors(scores),
            *(f"{name} was left out: statsmodels is not installed." for name in missing),
        ],
        seeds=list(scale.seeds),
    )


def _score(
    scorers: dict[tuple[str, int], Scorer], scale: Scale, cluster: str, predictor: str, seed: int
) -> dict[str, float]:
    if (cluster, seed) not in scorers:
        scorers[cluster, seed] = _scorer(scale, cluster, seed)
    scorer, spec, learned = scorers[cluster, seed], _spec(predictor, scale), None
    if predictor == FORMER:
        former = _scorer(scale, cluster, seed + _FORMER_SEED)
        learned = former.score(spec).learned
    scored = scorer.score(spec, learned)
    return {
        "rmse": scored.rmse,
        "noise": scored.noise,
        "over_bsp": scored.per_update / scorer.bsp,
        "over_oracle": scored.per_update / scorer.oracle,
    }


def _scorer(scale: Scale, cluster: str, seed: int) -> Scorer:
    if cluster != "B":
        made = make_cluster(cluster, scale.num_workers, scale.iterations, seed)
        return Scorer(made, Window(scale.start, scale.iterations, "iteration"))
    made = (
        make_cluster("B", seed=seed) if scale.google is None else draw_cluster(scale.google, seed)
    )
    return Scorer(made, Window.after(learning_ends(made, scale.start), scale.seconds))


def _spec(predictor: str, scale: Scale) -> str:
    """Return the short form; models are first trained when scoring begins."""
    name = "narx" if predictor == FORMER else predictor
    if parse_spec(name)[0] not in ("narx", "rnn", "lstm", "arima"):
        return name
    return f"{name}{',' if ':' in name else ':'}start={scale.start}"


def _median(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.median([f[name] for f in figures])) for name in figures[0]}


def _table(cluster: str, scores: Scores, scale: Scale) -> Table:
    num = 32 if scale.num_workers is None or cluster == "B" else scale.num_workers
    names = scores.names(cluster)
    noise = scores.get(cluster, names[0], "noise")
    return Table(
        f"{CLUSTERS[cluster]}: RMSE in samples per second, and iteration time",
        "virtual",
        [_row(name, scores.of[cluster, name]) for name in names],
        f"{num} workers, Alg. 1 (proportional), {_scored(cluster, scale)}, "
        f"{of_seeds('medians', scale.seeds)}. Who knew all but the noise would have an RMSE of "
        f"{noise:.3g}. The paper's figures are of its own Cluster-B.",
    )


def _scored(cluster: str, scale: Scale) -> str:
    if cluster != "B":
        return f"iterations {scale.start} to {scale.iterations - 1}"
    part = "its whole hour" if scale.seconds == HOUR else f"{scale.seconds:g} s of its hour"
    return (
        f"the same seconds of the trace for all, BSP and oracle too: {part}, from where models "
        f"have learned from {scale.start} iterations"
    )


def _row(name: str, figures: Mapping[str, float]) -> Row:
    rmse, over_bsp = PAPER.get(name, (None, None))
    return {
        "predictor": name,
        **beside("RMSE", figures["rmse"], rmse),
        **beside("time / BSP", figures["over_bsp"], over_bsp),
        "time / oracle": figures["over_oracle"],
    }


def _plot(scores: Scores) -> Plot:
    names = scores.names("P")
    curves = [
        Curve(title, names, [scores.of.get((c, n), {}).get("rmse") for n in names])
        for c, title in CLUSTERS.items()
    ]
    curves.append(Curve("paper", names, [PAPER.get(n, (None,))[0] for n in names]))
    return Plot("RMSE", "virtual", "", "samples per second", curves, bars=True)


_SPEEDS = [speed for _, _, speed in CPU_KINDS]
_DIFFERENCES = [
    "Our Cluster-B is another hour of Google's trace on other machines, with assumed speeds "
    f"({min(_SPEEDS):g} to {max(_SPEEDS):g} samples per second) and noise: RMSE and time over BSP "
    "are of that cluster. Time over BSP depends mostly on the one slowest worker; time over the "
    "oracle does not.",
    "On the Google trace levels last five minutes; in scenario P usage changes from iteration to "
    "iteration, and the speed with it.",
    "`narx, models of a former run` was trained on seeds of its own (scored seed + "
    f"{_FORMER_SEED}): other noise, and with the trace's full data other machines. All other rows "
    "that learn do so in the run that is scored, before it is.",
]

EXPERIMENT = Experiment(
    "predictors",
    "prediction error and iteration time of six predictors, and of ours",
    "Table 3, section 5.4",
    "virtual",
    run,
    data=("google",),
)
