"""`predictors`: RMSE and iteration time of six predictors (Table 3), with ours beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.clusters.named import make_cluster
from evenstep.core.settings import parse_spec
from evenstep.reproduce.drawn_machines import draw_cluster
from evenstep.reproduce.experiment import Experiment, Progress, Settings, steps
from evenstep.reproduce.result import Claim, Curve, Plot, Result, Row, Table, beside
from evenstep.reproduce.scoring import Scorer

FORMER = "narx, models of a former run"
"""Begins with what another run, with another seed, has learned."""
PAPER: dict[str, tuple[float, float]] = {
    "memoryless": (11.85, 0.58),
    "ema": (7.85, 0.48),
    "arima": (9.67, 0.52),
    "rnn": (8.34, 0.49),
    "lstm": (9.19, 0.51),
    "narx": (4.78, 0.42),
}
"""RMSE, and iteration time over BSP's."""
PREDICTORS = (*PAPER, "narx:reuse=false", FORMER, "kalman", "best_of")
CLUSTERS = {
    "B": "Cluster-B, Google trace",
    "P": "scenario P",
    "S": "scenario S",
    "M": "scenario M",
}
_FORMER_SEED = 1000
"""How far the seed of a former run is from the one that is scored."""


@dataclass(frozen=True)
class Scale:
    """How much is run."""

    clusters: Sequence[str]
    num_workers: int | None
    iterations: int
    start: int
    """The iteration at which models are first trained, and scoring begins."""
    seeds: Sequence[int]
    google: Path | None = None
    """The usage of all machines of the trace, to draw some for each seed; None: always the same."""


FULL = Scale(tuple(CLUSTERS), None, 1500, 500, (0, 1, 2))
QUICK = Scale(("P", "B"), 8, 400, 200, (0,))
_SLOW = ("arima", "rnn", "lstm")
"""Left out of a quick run on Cluster-B, whose 32 workers they take minutes for."""


def run(settings: Settings, progress: Progress) -> Result:
    """Score every predictor on every cluster."""
    scale = settings.choose(QUICK, replace(FULL, google=settings.data.google))
    left_out = () if find_spec("statsmodels") else ("arima",)
    work = [
        (cluster, predictor, seed)
        for cluster in scale.clusters
        for seed in scale.seeds
        for predictor in PREDICTORS
        if not (settings.quick and cluster == "B" and predictor in _SLOW)
        if predictor not in left_out
    ]
    scorers: dict[tuple[str, int], Scorer] = {}
    figures = {
        part: settings.parts.get("/".join(map(str, part)), partial(_score, scorers, scale, *part))
        for part in steps(work, progress)
    }
    medians = {
        (cluster, predictor): _median([figures[cluster, predictor, seed] for seed in scale.seeds])
        for cluster, predictor, seed in work
    }
    tables = [_table(cluster, medians, scale) for cluster in scale.clusters]
    missing = [f"{name} was left out: statsmodels is not installed." for name in left_out]
    return Result(
        tables,
        [_plot(medians, scale)],
        _claims(medians),
        [*_DIFFERENCES, *missing],
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
        "over_bsp": scored.time_over_bsp,
        "over_oracle": scored.time_over_oracle,
    }


def _scorer(scale: Scale, cluster: str, seed: int) -> Scorer:
    if cluster == "B" and scale.google is not None:
        drawn = draw_cluster(scale.google, scale.iterations, seed)
        return Scorer(drawn, scale.iterations, scale.start)
    num_workers = None if cluster == "B" else scale.num_workers
    made = make_cluster(cluster, num_workers, scale.iterations, seed)
    return Scorer(made, scale.iterations, scale.start)


def _spec(predictor: str, scale: Scale) -> str:
    """Return the short form; models are first trained when scoring begins."""
    name = "narx" if predictor == FORMER else predictor
    if parse_spec(name)[0] not in ("narx", "rnn", "lstm", "arima"):
        return name
    return f"{name}{',' if ':' in name else ':'}start={scale.start}"


def _median(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.median([f[name] for f in figures])) for name in figures[0]}


def _table(cluster: str, medians: dict[Any, dict[str, float]], scale: Scale) -> Table:
    num = 32 if scale.num_workers is None or cluster == "B" else scale.num_workers
    return Table(
        f"{CLUSTERS[cluster]}: RMSE in samples per second, and iteration time",
        "virtual",
        [_row(name, figures) for (c, name), figures in medians.items() if c == cluster],
        f"{num} workers, Alg. 1 (proportional), iterations {scale.start} to "
        f"{scale.iterations - 1}, medians over seeds {', '.join(map(str, scale.seeds))}. The "
        "paper's figures are of its own Cluster-B.",
    )


def _row(name: str, figures: dict[str, float]) -> Row:
    rmse, over_bsp = PAPER.get(name, (None, None))
    return {
        "predictor": name,
        **beside("RMSE", figures["rmse"], rmse),
        **beside("time / BSP", figures["over_bsp"], over_bsp),
        "time / oracle": figures["over_oracle"],
    }


def _plot(medians: dict[Any, dict[str, float]], scale: Scale) -> Plot:
    names = [name for cluster, name in medians if cluster == "P"]
    curves = [
        Curve(CLUSTERS[c], names, [medians.get((c, n), {}).get("rmse") for n in names])
        for c in scale.clusters
    ]
    curves.append(Curve("paper", names, [PAPER.get(n, (None,))[0] for n in names]))
    return Plot("RMSE", "virtual", "", "samples per second", curves, bars=True)


def _claims(medians: dict[Any, dict[str, float]]) -> list[Claim]:
    def rmse(name: str) -> float:
        return medians["P", name]["rmse"]

    def over_bsp(name: str) -> float:
        return medians["P", name]["over_bsp"]

    others = [name for name in PAPER if name != "narx" and ("P", name) in medians]
    gain, on_the_trace = (_gain(medians, cluster) for cluster in ("P", "B"))
    return [
        Claim(
            "narx_best",
            "NARX (with model reuse) has the smallest RMSE and iteration time of the paper's "
            "predictors in scenario P.",
            all(rmse("narx") < rmse(name) and over_bsp("narx") < over_bsp(name) for name in others),
        ),
        Claim(
            "narx_beats_ema",
            f"NARX's RMSE in P is at least 30 % below EMA's: it is "
            f"{1 - rmse('narx') / rmse('ema'):.0%} below; the paper has 39 %.",
            rmse("narx") < 0.7 * rmse("ema"),
        ),
        Claim(
            "narx_by_40",
            "NARX surpasses the second best of them by around 40 % in RMSE (within 15 points): "
            f"{gain:.0%} in P.",
            _is_around_40(gain),
            why="how much there is to know from usage differs from cluster to cluster",
        ),
        Claim(
            "narx_by_40_on_the_trace",
            f"The same on Cluster-B, where the paper has it: {on_the_trace:.0%} on our trace.",
            _is_around_40(on_the_trace),
            why="levels of our trace last five minutes, so that usage tells little that the last "
            "speeds do not; where usage changes with the speed, as in P, it does",
        ),
        Claim(
            "memoryless_worst_of_simple",
            "The last speed alone (memoryless) predicts worse than the moving average.",
            rmse("memoryless") > rmse("ema"),
        ),
        Claim(
            "kalman_as_good",
            "The Kalman filter, and best_of, are within 5 % of NARX's iteration time in P, without "
            "training.",
            max(over_bsp("kalman"), over_bsp("best_of")) < 1.05 * over_bsp("narx"),
            of="evenstep",
        ),
        Claim(
            "reuse_pays",
            "NARX trained on each worker's own samples alone is worse than with model reuse (P).",
            rmse("narx:reuse=false") > rmse("narx"),
            of="evenstep",
        ),
    ]


def _gain(medians: dict[Any, dict[str, float]], cluster: str) -> float:
    """Return how far NARX's RMSE is below the second best of the paper's predictors."""
    rmse = {name: medians[c, name]["rmse"] for c, name in medians if c == cluster}
    return 1 - rmse["narx"] / min(rmse[name] for name in PAPER if name != "narx" and name in rmse)


def _is_around_40(gain: float) -> bool:
    return 0.25 <= gain <= 0.55


_DIFFERENCES = [
    "Our Cluster-B is another hour of Google's trace on other machines, with assumed speeds (60 to "
    "115 samples per second) and noise: RMSE and time over BSP are of that cluster. Time over BSP "
    "depends mostly on the one slowest worker; time over the oracle does not.",
    "On the Google trace, levels last five minutes: hardly anything changes from one iteration to "
    "the next, and what predictors differ by is how they take noise and spikes. Scenario P, "
    "whose usage tells the coming speed, is where the paper's ranking shows.",
    "The paper trains NARX on 500 samples and reuses models; it does not say what without. Here "
    "NARX is worse without reuse, in some scenarios by much, and a prototype of ours lost to EMA.",
    "Which of ARIMA, RNN and LSTM is next to EMA is not the paper's order everywhere.",
    "`narx, models of a former run` was trained on seeds of its own (scored seed + 1000): other "
    "noise, and with the trace's full data other machines.",
]

EXPERIMENT = Experiment(
    "predictors",
    "prediction error and iteration time of six predictors, and of ours",
    "Table 3, section 5.4",
    "virtual",
    run,
    data=("google",),
)
