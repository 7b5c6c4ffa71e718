"""`gpu-curve`: computation time against batch size on GPUs (Fig. 4), from measured curves."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenstep.clusters.cluster_a import KINDS as GPUS
from evenstep.clusters.packaged import read_table
from evenstep.core.arrays import Floats
from evenstep.errors import DataFileError
from evenstep.reproduce.experiment import Experiment, Progress, Settings, steps
from evenstep.reproduce.fitting import Fit, fit_saturating
from evenstep.reproduce.result import Claim, Curve, Plot, Result, Row, Table, beside

MODELS = {"cifarnet": "CifarNet", "inception_v3": "Inception-V3"}
"""Those of the paper's figure."""
_PAPERS_SLOPES = {("inception_v3", "V100"): 0.5 / 57, ("inception_v3", "K520"): 2 / 26}
"""Seconds per sample, from what section 5.2 says of batches that grew by 57 and shrank by 26."""
_SATURATED = 1.5
"""A batch four times as large that takes less than this many times as long."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Medians of one GPU with one model."""

    model: str
    gpu: str
    kind: str
    sizes: Floats
    seconds: Floats

    @property
    def fit(self) -> Fit:
        return fit_saturating(self.sizes, self.seconds)


def run(settings: Settings, progress: Progress) -> Result:
    """Fit overhead, saturation and memory limit to the curves."""
    curves = list(steps(read_curves(settings.data.profet), progress))
    measured = {(curve.model, curve.gpu): curve for curve in curves}
    return Result(
        tables=[
            Table(
                "Overhead, seconds per sample, saturation and memory limit, found by fit",
                "published",
                [_row(curve) for curve in curves],
                "PROFET's medians (TensorFlow 2.5); K520 is derived: 2.0 times the K80's times, "
                "half the M60's memory. CifarNet's times are those of PROFET's CIFAR10_CNN. The "
                "memory limit is the largest batch size measured; 256 was the largest tried.",
            )
        ],
        plots=[_plot(model, [c for c in curves if c.model == model]) for model in MODELS],
        claims=_claims(measured),
        differences=[
            "The paper prints its curves as pictures only; the two slopes beside ours are read off "
            "its section 5.2 (57 samples more cost a V100 0.5 s, 26 fewer save a K520 2 s).",
            "The smallest batch measured is 16, so that a flat beginning (saturation) can hardly "
            "be told from a large overhead: where a line fits, no threshold is claimed.",
            "Its GPUs ran TensorFlow 1.4, these 2.5: a sample costs less here.",
        ],
    )


def read_curves(profet: Path | None) -> list[Measured]:
    """Return the medians that come with the package, with those of further GPUs in full data."""
    rows = [row for row in read_table("cluster_a") if row["model"] in MODELS]
    points: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["kind"] != "extrapolated":
            key = (row["model"], row["gpu"], row["kind"])
            points[key].append((float(row["batch_size"]), float(row["seconds"])))
    if profet is not None:
        names_of = {(r["model"], r["measured_model"], r["image_size"]) for r in rows}
        for model, *names in sorted(names_of):
            points[model, "T4", "measured"] = _medians(profet, *names)
    return [Measured(*key, *np.array(some).T) for key, some in points.items()]


def _medians(profet: Path, model: str, image_size: str) -> list[tuple[float, float]]:
    repeats = defaultdict(list)
    try:
        with profet.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if (row["model"], row["image_size"], row["gpu"]) == (model, image_size, "T4"):
                    repeats[float(row["batchsize"])].append(float(row["batch_ms"]) / 1000)
    except (KeyError, TypeError, ValueError) as error:
        raise DataFileError(f"{profet}: must be PROFET's latencies: {error!r}") from error
    if not repeats:
        rule = f"must have times of {model} on a T4 with pictures of {image_size}"
        raise DataFileError(f"{profet}: {rule}, got none")
    return [(size, float(np.median(times))) for size, times in sorted(repeats.items())]


def _row(curve: Measured) -> Row:
    fit = curve.fit
    return {
        "model": MODELS[curve.model],
        "GPU": curve.gpu,
        "points": f"{len(curve.sizes)} {curve.kind}",
        "overhead, ms": 1e3 * fit.overhead,
        **beside(
            "ms per sample",
            1e3 * fit.per_sample,
            1e3 * slope if (slope := _PAPERS_SLOPES.get((curve.model, curve.gpu))) else None,
        ),
        "saturation x^s": round(fit.saturation) if fit.saturation else "none seen",
        "memory limit x^o": int(curve.sizes[-1]),
        "r2": fit.r2,
    }


def _plot(model: str, curves: list[Measured]) -> Plot:
    return Plot(
        f"{MODELS[model]}: computation time against batch size",
        "published",
        "batch size",
        "seconds",
        [Curve(_label(c), c.sizes.tolist(), c.seconds.tolist()) for c in curves],
        log=True,
    )


def _label(curve: Measured) -> str:
    return curve.gpu if curve.kind == "measured" else f"{curve.gpu} ({curve.kind})"


def _claims(measured: dict[tuple[str, str], Measured]) -> list[Claim]:
    inception = [measured["inception_v3", gpu] for gpu in GPUS]
    small = measured["cifarnet", "V100"]
    four_times = float(np.interp(64, small.sizes, small.seconds) / small.seconds[0])
    limits = [int(curve.sizes[-1]) for curve in inception]
    # What was derived from a curve has its shape, and proves nothing.
    proper = [curve for curve in inception if curve.kind == "measured"]
    at_32 = [float(np.interp(32, curve.sizes, curve.seconds)) for curve in proper]
    return [
        Claim(
            "overhead",
            "Launching a GPU takes time whatever the batch size is: overhead > 0 on all measured "
            "GPUs with Inception-V3.",
            all(curve.fit.overhead > 0 for curve in proper),
        ),
        Claim(
            "saturation",
            "A V100 is not saturated by small batches: with CifarNet, 64 samples take "
            f"{four_times:.2f} times as long as 16, not 4 times.",
            four_times < _SATURATED,
        ),
        Claim(
            "memory",
            "Memory limits the batch size, and differently on different GPUs (Inception-V3: "
            f"{', '.join(f'{g} {x}' for g, x in zip(GPUS, limits, strict=True))}).",
            len(set(limits)) > 1,
        ),
        Claim(
            "monotone",
            "Larger batches of Inception-V3 take longer on all measured GPUs.",
            all(bool(np.all(np.diff(curve.seconds) > 0)) for curve in proper),
        ),
        Claim(
            "order",
            "With 32 samples of Inception-V3 a V100 is fastest, then M60 and K80 (the K520's "
            "times are derived from the K80's).",
            at_32 == sorted(at_32),
        ),
    ]


EXPERIMENT = Experiment(
    "gpu-curve",
    "computation time against batch size on four GPUs",
    "Fig. 4, section 3.3.1",
    "published",
    run,
    data=("profet",),
)
