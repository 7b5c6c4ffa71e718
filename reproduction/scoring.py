"""Scoring predictors: Alg. 1 with each of them on the same cluster and noise (virtual time)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import Floats, metrics
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.engine.experiment import EVEN
from evenstep.simulator.engine.iteration import Iteration
from evenstep.simulator.engine.planners import BalancedPlanner
from evenstep.simulator.engine.simulation import ORACLE, Setup, predicted_speeds
from evenstep.simulator.engine.virtual import SizeSource, VirtualEngine
from reproduction.window import Window

State = Mapping[str, NDArray[Any]]
"""The learned state of a predictor."""


@dataclass(frozen=True, eq=False)
class Scored:
    """The figures of a predictor in a window."""

    rmse: float
    """Mean over workers, in samples per second."""
    noise: float
    """The RMSE of a predictor that knows all but the noise."""
    per_update: float
    """Seconds."""
    predicted: Floats
    """(iteration, worker), in samples per second; of all iterations, as the speeds."""
    speeds: Floats
    learned: State


@dataclass(frozen=True)
class Scorer:
    """Plain BSP and the oracle are run once, for all predictors, and only if they are asked for."""

    cluster: Cluster
    window: Window

    def score(self, predictor: str, learned: State | None = None) -> Scored:
        """Run Alg. 1 with a predictor, which may begin with what another run has learned."""
        balancer = Setup("proportional", predictor).balancer(self.cluster)
        assert balancer.predictor is not None
        if learned is not None:
            balancer.predictor.restore(learned)
        planner = BalancedPlanner(balancer)
        run, predicted = [], []
        for iteration in self._run(planner):
            run.append(iteration)
            predicted.append(predicted_speeds(planner.in_force))
        speeds = np.array([each.sizes / each.times for each in run])
        scored = np.array([self.window.has(each.number, each.start) for each in run])
        without_noise = speeds * [each.at.noise for each in run]
        rmse, noise = (
            metrics.rmse(known[scored], speeds[scored])
            for known in (np.array(predicted), without_noise)
        )
        assert rmse is not None, "proportional predicts"
        assert noise is not None, "a worker has samples"
        return Scored(
            rmse,
            noise,
            self._per_update(run),
            np.array(predicted),
            speeds,
            balancer.predictor.state(),
        )

    @cached_property
    def bsp(self) -> float:
        """Seconds per update with equal batches."""
        return self._per_update(list(self._run(EVEN.planner(self.cluster))))

    @cached_property
    def oracle(self) -> float:
        """The same of the oracle, which knows the times of the coming iteration."""
        return self._per_update(list(self._run(Setup(ORACLE).planner(self.cluster))))

    def _run(self, planner: SizeSource) -> Iterator[Iteration]:
        """Yield all iterations that begin before the window is over."""
        for iteration in VirtualEngine(self.cluster, planner).run(sys.maxsize):
            yield iteration
            if self.window.is_over(iteration.number + 1, iteration.start + iteration.time):
                return

    def _per_update(self, run: list[Iteration]) -> float:
        return self.window.per_update([each.start + each.time for each in run])


def learning_ends(cluster: Cluster, iterations: int) -> float:
    """Return when the models that learn are first trained, in seconds: they are EMA before."""
    planner = Setup("proportional", "ema").planner(cluster)
    *_, last = VirtualEngine(cluster, planner).run(iterations)
    return last.start + last.time
