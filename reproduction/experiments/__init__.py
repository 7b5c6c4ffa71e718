"""The registry of experiments, in the order of the paper; then what goes beyond it."""

from __future__ import annotations

from reproduction.experiment import Experiment
from reproduction.experiments import (
    accuracy,
    cluster_a,
    cluster_b,
    cpu_curve,
    gpu_curve,
    micro,
    modern,
    narx_curve,
    overhead,
    partitions,
    predictors,
    scale,
    slowdown,
    weighted,
)

EXPERIMENTS: dict[str, Experiment] = {
    "cpu-curve": cpu_curve.EXPERIMENT,
    "slowdown": slowdown.EXPERIMENT,
    "gpu-curve": gpu_curve.EXPERIMENT,
    "weighted": weighted.EXPERIMENT,
    "partitions": partitions.EXPERIMENT,
    "cluster-a": cluster_a.EXPERIMENT,
    "accuracy": accuracy.EXPERIMENT,
    "micro": micro.EXPERIMENT,
    "cluster-b": cluster_b.EXPERIMENT,
    "narx-curve": narx_curve.EXPERIMENT,
    "predictors": predictors.EXPERIMENT,
    "overhead": overhead.EXPERIMENT,
    "scale": scale.EXPERIMENT,
    "modern": modern.EXPERIMENT,
}
