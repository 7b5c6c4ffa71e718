"""A simulation: runs one policy, plain BSP and the oracle on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from evenstep.core import Floats, Ints, Plan, Trainer, TrainNow, metrics
from evenstep.core.planner import Planner
from evenstep.policies import make_policy
from evenstep.predictors import DEFAULT_PREDICTOR, make_predictor
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions
from evenstep.simulator.engine.iteration import Iteration
from evenstep.simulator.engine.planners import BalancedPlanner, OraclePlanner
from evenstep.simulator.engine.virtual import SizeSource, VirtualEngine

ORACLE = "oracle"
"""A pseudo-policy that knows the noise of the coming iteration; in virtual time only."""
STEADY_AFTER = 50
"""Iterations after the start, or after a scheduled change, from which a run counts as steady."""

Watcher = Callable[[Iteration, Plan], None]
"""Called with every iteration of the chosen policy and its plan."""

T = TypeVar("T")


class Tracker(Protocol):
    """Passes on the iterations of one part of a simulation, and sees how far it is."""

    def __call__(self, part: str, iterations: Iterable[T], /) -> Iterable[T]: ...


def untracked(part: str, iterations: Iterable[T]) -> Iterable[T]:
    """Pass on the iterations."""
    return iterations


def needs_predictor(policy: str) -> bool:
    """Return whether a policy needs predicted speeds.

    >>> needs_predictor("proportional"), needs_predictor("equal_finish"), needs_predictor("oracle")
    (True, False, False)
    """
    return policy != ORACLE and make_policy(policy).uses_speeds


@dataclass(frozen=True)
class Setup:
    """A policy with its predictor and delay."""

    policy: str
    predictor: str | None = None
    delay: int = 0
    """Iterations between a decision and its effect."""

    @classmethod
    def of(cls, cluster: Cluster, policy: str | None, predictor: str | None, delay: int) -> Setup:
        """Fill in defaults: the cluster's policy, and a predictor if the policy needs one."""
        policy = policy or cluster.policy
        if predictor is None and needs_predictor(policy):
            predictor = DEFAULT_PREDICTOR
        return cls(policy, predictor, delay)

    def planner(self, cluster: Cluster, trainer: Trainer | None = None) -> SizeSource:
        """Make the planner: a balancer, or the oracle."""
        if self.policy == ORACLE:
            return OraclePlanner(cluster)
        return BalancedPlanner(self.balancer(cluster, trainer))

    def balancer(self, cluster: Cluster, trainer: Trainer | None = None) -> Planner:
        """Make the planner behind it; its predictor is trained on the spot, or by the trainer."""
        return Planner(
            cluster.workers,
            cluster.total,
            make_policy(self.policy),
            make_predictor(self.predictor, cluster.num_workers) if self.predictor else None,
            minimum=cluster.minimum,
            granularity=cluster.granularity,
            delay=self.delay,
            trainer=trainer or TrainNow(),
        )


@dataclass(frozen=True, eq=False)
class SimulationOutcome:
    """The results, one row per iteration."""

    cluster: Cluster
    sizes: Ints
    """x, (iteration, worker)."""
    times: Floats
    """t, (iteration, worker), in seconds."""
    predicted_speeds: Floats
    """Predicted v, (iteration, worker); NaN without a prediction."""
    expected: Floats
    """M: the iteration time without noise."""
    optimum: Floats
    """M*: the best iteration time without noise."""
    optimum_realised: Floats
    """The iteration time, with noise, of the sizes of M*."""
    bsp: Floats
    """Iteration times of plain BSP."""
    oracle: Floats
    """Iteration times of the oracle."""

    @property
    def realised(self) -> Floats:
        """The iteration times, with noise."""
        realised: Floats = self.times.max(axis=1)
        return realised

    @property
    def scored_from(self) -> int:
        """The first iteration that counts; predictors learn before it, if the run is longer."""
        return self.cluster.score_from if len(self.sizes) > self.cluster.score_from else 0

    def figures(self) -> dict[str, Any]:
        """Return the figures of the run; docs/simulate.md defines them."""
        num_iterations = len(self.sizes)
        scored = slice(self.scored_from, None)
        change = self.cluster.changes_at
        if change is None or not 0 < change < num_iterations:
            change = num_iterations
        before, after = slice(0, change), slice(change, None)
        return {
            "settle_5": self._settling(before, 0.05),
            "settle_2": self._settling(before, 0.02),
            "settle_5_after": self._settling(after, 0.05),
            "settle_2_after": self._settling(after, 0.02),
            "waste": metrics.waste(self.expected[scored], self.optimum[scored]),
            "realised": metrics.waste(self.realised[scored], self.optimum_realised[scored]),
            "changes_per_100": self._steady_changes(before, after),
            "overruns": metrics.overruns(self.sizes, self.cluster.cap),
            "final_sizes": self.sizes[-1].tolist(),
            "time_over_oracle": metrics.time_over(self.realised[scored], self.oracle[scored]),
            "time_over_bsp": metrics.time_over(self.realised[scored], self.bsp[scored]),
            "rmse": self._rmse(scored),
            "waiting_share": metrics.waiting_share(self.times[scored]),
            "per_update_time": metrics.per_update_time(
                self.realised[scored], self.cluster.num_workers
            ),
        }

    def _settling(self, part: slice, within: float) -> int | None:
        return metrics.settling(self.expected[part], self.optimum[part], within)

    def _steady_changes(self, before: slice, after: slice) -> float | None:
        parts = [self.sizes[part][STEADY_AFTER:] for part in (before, after)]
        weighed = [
            (len(part) - 1, rate)
            for part in parts
            if (rate := metrics.changes_per_100(part)) is not None
        ]
        if not weighed:
            return None
        return sum(count * rate for count, rate in weighed) / sum(count for count, _ in weighed)

    def _rmse(self, scored: slice) -> float | None:
        with np.errstate(divide="ignore", invalid="ignore"):
            speeds = np.where(self.sizes > 0, self.sizes / self.times, np.nan)
        return metrics.rmse(self.predicted_speeds[scored], speeds[scored])


def simulate(
    cluster: Cluster,
    setup: Setup,
    iterations: int,
    watch: Watcher | None = None,
    track: Tracker = untracked,
) -> SimulationOutcome:
    """Run the policy, plain BSP and the oracle on the same noise."""
    planner = BalancedPlanner(setup.balancer(cluster))
    run: list[Iteration] = []
    plans: list[Plan] = []
    for iteration in track(setup.policy, VirtualEngine(cluster, planner).run(iterations)):
        run.append(iteration)
        plans.append(planner.in_force)
        if watch is not None:
            watch(iteration, planner.in_force)
    even = VirtualEngine(cluster, Setup("even").planner(cluster))
    oracle = VirtualEngine(cluster, OraclePlanner(cluster))
    best = _optima(cluster, track("optimum", [iteration.at for iteration in run]))
    return SimulationOutcome(
        cluster=cluster,
        sizes=np.array([iteration.sizes for iteration in run]),
        times=np.array([iteration.times for iteration in run]),
        predicted_speeds=np.array([predicted_speeds(plan) for plan in plans]),
        expected=np.array([cluster.expected_times(i.sizes, i.at).max() for i in run]),
        optimum=np.array(
            [cluster.expected_times(x, i.at).max() for x, i in zip(best, run, strict=True)]
        ),
        optimum_realised=np.array(
            [cluster.times(x, i.at).max() for x, i in zip(best, run, strict=True)]
        ),
        bsp=np.array([i.time for i in track("plain BSP", even.run(iterations))]),
        oracle=np.array([i.time for i in track("oracle", oracle.run(iterations))]),
    )


def median_figures(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the median over seeds of every figure; None counts as infinite.

    >>> median_figures([{"seed": 0, "settle_5": 3}, {"seed": 1, "settle_5": None}])
    {'settle_5': None}
    """
    return {name: _median([seed[name] for seed in seeds]) for name in seeds[0] if name != "seed"}


def medians(clusters: Sequence[Cluster], policy: str, delay: int = 0) -> dict[str, Any]:
    """Simulate a policy on the clusters of several seeds and return the median figures."""
    return median_figures(
        [
            simulate(cluster, Setup.of(cluster, policy, None, delay), cluster.iterations).figures()
            for cluster in clusters
        ]
    )


def _median(values: Sequence[Any]) -> Any:
    if isinstance(values[0], list):
        return [_median(column) for column in zip(*values, strict=True)]
    median = float(np.median([np.inf if value is None else value for value in values]))
    return median if np.isfinite(median) else None


def _optima(cluster: Cluster, conditions: Iterable[Conditions]) -> list[Ints]:
    """Return the optimum of each iteration, computed once for equal conditions."""
    known: dict[tuple[bytes, bytes], Ints] = {}
    optima = []
    for at in conditions:
        key = (at.slowdown.tobytes(), at.communication.tobytes())
        if key not in known:
            known[key] = cluster.optimum(at)
        optima.append(known[key])
    return optima


def predicted_speeds(plan: Plan) -> Floats:
    """Return the speeds that a plan assumes; NaN where unknown."""
    if plan.predicted_times is None:
        return np.full(len(plan.sizes), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(plan.sizes > 0, plan.sizes / plan.predicted_times, np.nan)
