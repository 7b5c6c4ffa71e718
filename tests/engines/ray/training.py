"""Small runs on Ray for the tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from evenstep.clusters.scenarios import make_scenario
from evenstep.engines.experiment import Experiment
from evenstep.engines.on_ray.settings import RaySettings
from evenstep.engines.on_ray.start import ray_run
from evenstep.engines.run import Run
from evenstep.engines.simulation import Setup
from evenstep.workloads.digits import mlp_digits

CLUSTER = replace(make_scenario("P", num_workers=3, iterations=40, seed=1), total=48)
EXACT = mlp_digits(torch.float64, width=16)
SGD = "sgd:learning_rate=0.1"
MOMENTUM = "sgd:learning_rate=0.05,momentum=0.9"
QUICK = RaySettings(patience=30.0, start_patience=100.0)


def experiment(scheme="bsp", policy="even", optimizer=SGD, cluster=CLUSTER, **how) -> Experiment:
    return Experiment(scheme, Setup.of(cluster, policy, None, 0), optimizer, **how)


@contextmanager
def training(
    scheme="bsp",
    policy="even",
    cluster=CLUSTER,
    settings=QUICK,
    watch=None,
    workload=EXACT,
    samples=None,
    **how,
) -> Iterator[Run]:
    made = experiment(scheme, policy, cluster=cluster, **how)
    with ray_run(made, cluster, workload, settings, samples, watch) as run:
        yield run


def trained(*what, updates=6, **how):
    """Train on Ray; return the run, which has ended, and the parameters it ended with."""
    with training(*what, **how) as run:
        for _ in run.advance(updates):
            pass
        return run, run.parameters


def difference(one, other) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))
