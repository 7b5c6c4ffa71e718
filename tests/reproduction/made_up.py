"""Trainings with made-up figures, to ask claims of."""

from evenstep.simulator.engine.comparison import Comparison
from reproduction.end_to_end import (
    ALG_2,
    ASP,
    BALANCED,
    BSP,
    MODELS,
    QUICK,
    SSP,
    Trainings,
    near,
)
from reproduction.steady_state import CLUSTERS, ORACLE, SteadyState
from reproduction.training import Trained

SCHEMES = (BSP, ASP, SSP, ALG_2, BALANCED)


def trained(accuracy=(0.1, 0.4, 0.8), pace=1.0, loss=1.0):
    """A run that is evaluated every 10 updates, each of which takes `pace` seconds."""
    updates = [10 * i for i in range(len(accuracy))]
    times = [pace * count for count in updates]
    return Trained(pace / 16, updates, times, list(accuracy), [loss] * len(updates), 16, 0.0)


def trainings(model="resnet32", target=None, **others):
    """All schemes train alike, but for those that are given."""
    named = {"bsp": BSP, "asp": ASP, "ssp": SSP, "alg_2": ALG_2, "balanced": BALANCED}
    runs = {label: [trained()] for label in SCHEMES}
    runs |= {named[name]: [run] for name, run in others.items()}
    how = Comparison("A", evaluate_every=10, iterations=20)
    target = target or near(runs)
    return Trainings(how, model, runs, target, False, "a net on pictures", 5.0, QUICK)


def all_models(**others):
    return [trainings(model, **others) for model in MODELS]


def settled(without_v100s=0.6, **others):
    """Every cluster is as fast as the next, but for LB-BSP and the oracle without the V100s."""
    paces = {"bsp": 1.0, "asp": 0.5, "ssp": 0.9, "alg_2": 0.4, "balanced": 0.4, "oracle": 0.4}
    paces |= others
    labels = dict(zip(paces, (*SCHEMES, ORACLE), strict=True))
    balanced = ("alg_2", "balanced", "oracle")
    seconds = {
        cluster: {
            labels[name]: [[0.25 * (without_v100s if few and name in balanced else pace)] * 4]
            for name, pace in paces.items()
        }
        for cluster in CLUSTERS
        for few in [cluster[0] == 12]
    }
    return SteadyState(seconds, [0], 400)
