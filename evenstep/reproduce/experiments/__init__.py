"""The registry of experiments, in the order in which they are made."""

from __future__ import annotations

from evenstep.reproduce.experiment import Experiment
from evenstep.reproduce.experiments import (
    gpu_curve,
    micro,
    modern,
    narx_curve,
    predictors,
    scale,
)

EXPERIMENTS: dict[str, Experiment] = {
    "gpu-curve": gpu_curve.EXPERIMENT,
    "micro": micro.EXPERIMENT,
    "predictors": predictors.EXPERIMENT,
    "narx-curve": narx_curve.EXPERIMENT,
    "scale": scale.EXPERIMENT,
    "modern": modern.EXPERIMENT,
}
