"""Small runs on Ray for the tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from evenstep.simulator.clusters.curves import Curves, linear
from evenstep.simulator.engine.experiment import Experiment
from evenstep.simulator.engine.run import Run
from evenstep.simulator.engine.simulation import Setup
from evenstep.simulator.ray_engine.ray_settings import RaySettings
from evenstep.simulator.ray_engine.start import ray_run
from evenstep.simulator.workloads.digits import mlp_digits
from tests.simulator.engine.test_staleness import cluster_of

SGD = "sgd:learning_rate=0.1"
MOMENTUM = "sgd:learning_rate=0.05,momentum=0.9"
EXACT = mlp_digits(torch.float64, width=16)
QUICK = RaySettings(start_patience=150.0)


def cluster_with(*speeds):
    """Make a cluster whose workers have these speeds, in samples/s; 16 samples for each."""
    curves = Curves.of([linear(speed) for speed in speeds])
    return replace(cluster_of(*speeds), curves=curves, total=16 * len(speeds))


CLUSTER = cluster_with(10.0, 40.0)


def experiment(scheme="bsp", policy="even", optimizer=SGD, cluster=CLUSTER, **how) -> Experiment:
    return Experiment(scheme, Setup.of(cluster, policy, "ema", 0), optimizer, **how)


def virtual(updates=6, samples=None, **how):
    """Train by BSP in virtual time; return the parameters."""
    run = experiment(**how).start(CLUSTER, EXACT, samples)
    for _ in run.advance(updates):
        pass
    return run.parameters


@contextmanager
def training(
    scheme="bsp", policy="even", cluster=CLUSTER, settings=QUICK, watch=None, samples=None, **how
) -> Iterator[Run]:
    made = experiment(scheme, policy, cluster=cluster, **how)
    with ray_run(made, cluster, EXACT, settings, samples, watch) as run:
        yield run


def trained(*what, updates=6, **how):
    """Train on Ray; return the finished run and the final parameters."""
    with training(*what, **how) as run:
        for _ in run.advance(updates):
            pass
        return run, run.parameters


def difference(one, other) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))
