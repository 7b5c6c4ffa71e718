"""`gpu-curve`: computation time against batch size on GPUs (Fig. 4), from measured curves."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenstep.core import Floats
from evenstep.errors import DataFileError
from evenstep.simulator.clusters.cluster_a import KINDS as GPUS
from evenstep.simulator.clusters.tables import read_table
from reproduction.experiment import Experiment, Progress, Settings, steps
from reproduction.fitting import Fit, fit_saturating
from reproduction.result import Claim, Curve, Plot, Result, Row, Table, beside

MODELS = {"cifarnet": "CifarNet", "inception_v3": "Inception-V3"}
"""Those of the paper's figure."""
_PAPERS_SLOPES = {("inception_v3", "V100"): 0.5 / 57, ("inception_v3", "K520"): 2 / 26}
"""Seconds per sample, from what section 5.2 says of batches that grew by 57 and shrank by 26."""
_SATURATED = 1.5
"""A batch four times as large that takes less than this many times as long."""
LARGEST_TRIED = 256
"""The largest batch size that PROFET tried."""


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

    @property
    def limit(self) -> str:
        """The largest batch size that fitted; larger ones may fit where none was tried."""
        largest = int(self.sizes[-1])
        limit = f">= {largest}" if largest >= LARGEST_TRIED else f"{largest}"
        return limit if self.kind == "measured" else f"{limit} ({self.kind})"


def run(settings: Settings, progress: Progress) -> Result:
    """Fit overhead and saturation to the curves, and say up to which batch size they go."""
    curves = list(steps(read_curves(settings.data.profet), progress))
    measured = {(curve.model, curve.gpu): curve for curve in curves}
    return Result(
        tables=[
            Table(
                "Overhead, seconds per sample and saturation, found by fit, and memory limit",
                "published",
                [_row(curve) for curve in curves],
                "PROFET's medians (TensorFlow 2.5); K520 is derived: 2.0 times the K80's times, "
                "half the M60's memory. CifarNet's times are those of PROFET's CIFAR10_CNN. Sizes "
                "were doubled from 16 on: the memory limit is the largest that was measured, not "
                f"fitted, and less than twice as much may do; beyond {LARGEST_TRIED} none was "
                "tried.",
            )
        ],
        plots=[_plot(model, [c for c in curves if c.model == model]) for model in MODELS],
        claims=_claims(measured),
        differences=[
            "The paper prints its curves as pictures only; the two slopes beside ours are read off "
            "its section 5.2 (57 samples more cost a V100 0.5 s, 26 fewer save a K520 2 s).",
            "The smallest batch measured is 16, so that a flat beginning (saturation) can hardly "
            "be told from a large overhead: where a line fits, no threshold is claimed.",
            _saturation_seen(curves),
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
        "memory limit x^o": curve.limit,
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


def _saturation_seen(curves: Sequence[Measured]) -> str:
    """Say on which GPUs the fit sees saturation; the paper names V100s for it."""
    # What was derived from a curve has its shape, and proves nothing.
    seen = [c for c in curves if c.kind == "measured" and c.fit.saturation]
    said = ", ".join(f"{c.gpu} ({MODELS[c.model]}: {c.fit.saturation:.0f})" for c in seen)
    if any(curve.gpu == "V100" for curve in seen):
        return f"The fit sees saturation on {said}."
    where = f"{said}, and none on the V100" if said else "no measured GPU"
    return f"The fit sees saturation on {where}; the paper names it of advanced GPUs like the V100."


def _claims(measured: Mapping[tuple[str, str], Measured]) -> list[Claim]:
    inception = [measured["inception_v3", gpu] for gpu in GPUS]
    # What was derived from a curve has its shape, and proves nothing.
    proper = [curve for curve in inception if curve.kind == "measured"]
    return [
        _overhead(proper),
        _saturation(measured["cifarnet", "V100"]),
        _memory(proper),
        _monotone(proper),
        _order(proper),
    ]


def _overhead(curves: Sequence[Measured]) -> Claim:
    none = [curve for curve in curves if curve.fit.overhead <= 0]
    return Claim(
        "overhead",
        "Launching a GPU takes time whatever the batch size is: overhead > 0 on all measured "
        "GPUs with Inception-V3.",
        not none,
        why="the fit finds "
        + ", ".join(f"{1e3 * curve.fit.overhead:.1f} ms on {curve.gpu}" for curve in none),
    )


def _saturation(curve: Measured) -> Claim:
    small, large = 16, 64
    times = float(np.divide(*np.interp([large, small], curve.sizes, curve.seconds)))
    return Claim(
        "saturation",
        f"A V100 is not saturated by small batches: with CifarNet, {large} samples take "
        f"{times:.2f} times as long as {small}, not 4 times.",
        times < _SATURATED,
        why=f"less than {_SATURATED:g} times is asked; the smallest batch size measured is "
        f"{curve.sizes[0]:.0f}, what is below is not known",
    )


def _memory(curves: Sequence[Measured]) -> Claim:
    return Claim(
        "memory",
        "Memory limits the batch size, and differently on different GPUs (Inception-V3, largest "
        f"size measured: {', '.join(f'{c.gpu} {c.limit}' for c in curves)}).",
        len({curve.limit for curve in curves}) > 1,
        why="the largest size measured is the same on all of them; sizes were doubled, so that "
        "limits within a factor of two look the same",
    )


def _monotone(curves: Sequence[Measured]) -> Claim:
    falls = [
        f"{curve.sizes[i + 1]:.0f} samples take no longer than {curve.sizes[i]:.0f} on {curve.gpu}"
        for curve in curves
        for i in np.flatnonzero(np.diff(curve.seconds) <= 0)
    ]
    return Claim(
        "monotone",
        "Larger batches of Inception-V3 take longer on all measured GPUs.",
        not falls,
        why=", ".join(falls),
    )


def _order(curves: Sequence[Measured]) -> Claim:
    seconds = {c.gpu: float(np.interp(32, c.sizes, c.seconds)) for c in curves}
    order = sorted(seconds, key=lambda gpu: seconds[gpu])
    return Claim(
        "order",
        "With 32 samples of Inception-V3 a V100 is fastest, then M60 and K80 (the K520's times "
        "are derived from the K80's).",
        order == list(seconds),
        why=f"the order is {', '.join(f'{gpu} ({seconds[gpu]:.3f} s)' for gpu in order)}",
    )


EXPERIMENT = Experiment(
    "gpu-curve",
    "computation time against batch size on four GPUs",
    "Fig. 4, section 3.3.1",
    "published",
    run,
    data=("profet",),
)
