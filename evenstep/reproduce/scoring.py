"""Scoring predictors: Alg. 1 with each of them on the same cluster and noise (virtual time)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.clusters.cluster import Cluster
from evenstep.core import metrics
from evenstep.core.arrays import Floats
from evenstep.engines.experiment import EVEN
from evenstep.engines.planners import BalancedPlanner
from evenstep.engines.simulation import ORACLE, Setup, predicted_speeds
from evenstep.engines.virtual import Planner, VirtualEngine

State = Mapping[str, NDArray[Any]]
"""What a predictor has learned."""


@dataclass(frozen=True, eq=False)
class Scored:
    """What a predictor reached from an iteration on."""

    rmse: float
    """Mean over workers, in samples per second."""
    time_over_bsp: float
    time_over_oracle: float
    predicted: Floats
    """(iteration, worker), in samples per second."""
    speeds: Floats
    learned: State


@dataclass(frozen=True)
class Scorer:
    """Plain BSP and the oracle are run once, for all predictors on this cluster."""

    cluster: Cluster
    iterations: int
    scored_from: int

    def score(self, predictor: str, learned: State | None = None) -> Scored:
        """Run Alg. 1 with a predictor, which may begin with what another run has learned."""
        setup = Setup("proportional", predictor)
        balancer = setup.balancer(self.cluster)
        assert balancer.predictor is not None
        if learned is not None:
            balancer.predictor.restore(learned)
        planner = BalancedPlanner(balancer)
        predicted, speeds, times = [], [], []
        for iteration in VirtualEngine(self.cluster, planner).run(self.iterations):
            predicted.append(predicted_speeds(planner.in_force))
            speeds.append(iteration.sizes / iteration.times)
            times.append(iteration.time)
        scored = slice(self.scored_from, None)
        rmse = metrics.rmse(np.array(predicted)[scored], np.array(speeds)[scored])
        assert rmse is not None, "proportional predicts"
        return Scored(
            rmse,
            metrics.time_over(np.array(times)[scored], self._bsp[scored]),
            metrics.time_over(np.array(times)[scored], self._oracle[scored]),
            np.array(predicted),
            np.array(speeds),
            balancer.predictor.state(),
        )

    @cached_property
    def _bsp(self) -> Floats:
        return self._times(EVEN.planner(self.cluster))

    @cached_property
    def _oracle(self) -> Floats:
        return self._times(Setup(ORACLE).planner(self.cluster))

    def _times(self, planner: Planner) -> Floats:
        run = VirtualEngine(self.cluster, planner).run(self.iterations)
        return np.array([iteration.time for iteration in run])
