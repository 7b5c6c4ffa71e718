"""Views, boundaries and runs for the tests of policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from evenstep.core import Decision, Floats, Ints, Limits, Reports, View, as_floats, as_ints
from evenstep.policies import Policy
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.engine.planners import BalancedPlanner
from evenstep.simulator.engine.simulation import Setup
from evenstep.simulator.engine.virtual import VirtualEngine


def view_of(
    current: ArrayLike,
    times: ArrayLike | None = None,
    *,
    iteration: int = 1,
    used: ArrayLike | None = None,
    speeds: ArrayLike | None = None,
    device_memory: ArrayLike | None = None,
    limits: Limits | None = None,
) -> View:
    """Make the view of a policy; the times are of the current sizes, or of those `used`.

    NaN times are those of silent workers, no times at all are the first boundary.
    """
    current = as_ints(current)
    n = len(current)
    seen = np.full(n, np.nan) if times is None else as_floats(times)
    sizes = current if used is None else as_ints(used)
    reports = Reports(
        iteration=iteration,
        batch_sizes=np.where(np.isfinite(seen), sizes, 0),
        times=seen,
        cpu=np.ones(n),
        memory=np.ones(n),
        device_memory=np.full(n, np.nan) if device_memory is None else as_floats(device_memory),
    )
    reports.check()
    return View(
        reports,
        current,
        np.full(n, np.nan) if speeds is None else as_floats(speeds),
        Limits.of(n) if limits is None else limits,
    )


def freeze(record: Any) -> Any:
    """Make every array in a record and in the records within it read-only, and return it."""
    if isinstance(record, np.ndarray):
        record.setflags(write=False)
    elif is_dataclass(record):
        for field in fields(record):
            freeze(getattr(record, field.name))
    return record


def play(
    policy: Policy[Any],
    times_of: Callable[[int, Ints], Floats],
    start: Sequence[int],
    iterations: int,
    limits: Limits | None = None,
    delay: int = 0,
) -> list[Decision]:
    """Run workers with given times, and return what was decided for each iteration.

    `times_of(k, sizes)` are the times of iteration k. Decisions take effect `delay` iterations
    late; decision k is made at the boundary of iteration k.
    """
    limits = Limits.of(len(start)) if limits is None else limits
    state, decisions = policy.init(len(start)), []
    coming = [as_ints(start)] * (delay + 1)
    seen: Floats = np.full(len(start), np.nan)
    for k in range(iterations):
        view = view_of(coming[-1], seen, iteration=k, used=coming[0], limits=limits)
        decision, state = policy.plan(view, state)
        decisions.append(decision)
        coming = [*coming[1:], decision.sizes]
        seen = np.where(coming[0] > 0, times_of(k, coming[0]), np.nan)
    return decisions


def sizes_of(decisions: Sequence[Decision]) -> list[tuple[int, ...]]:
    return [tuple(decision.sizes.tolist()) for decision in decisions]


class Run:
    """A policy on a cluster: the sizes of each iteration, and the newest plan after each."""

    def __init__(self, cluster: Cluster, policy: str, iterations: int, delay: int = 0) -> None:
        planner = BalancedPlanner(Setup.of(cluster, policy, None, delay).balancer(cluster))
        self.cluster = cluster
        self.iterations = []
        self.plans = []
        for iteration in VirtualEngine(cluster, planner).run(iterations):
            self.iterations.append(iteration)
            self.plans.append(planner.newest)
        self.sizes = [tuple(iteration.sizes.tolist()) for iteration in self.iterations]

    def stands_from(self, first: int, end: int) -> int:
        """Return from where on, between two iterations, the sizes are those before `end`."""
        moving = [k for k in range(first, end) if self.sizes[k] != self.sizes[end - 1]]
        return moving[-1] + 1 if moving else first

    def begins(self, phase: str) -> int | None:
        """Return the boundary at which a phase was first decided."""
        return next((k for k, plan in enumerate(self.plans) if plan.phase == phase), None)

    def waste(self) -> float:
        """Return the share of time lost against the optimum, noise apart."""
        best = self.cluster.optimum(self.iterations[0].at)
        pairs = [
            [self.cluster.expected_times(x, i.at).max() for x in (i.sizes, best)]
            for i in self.iterations
        ]
        lost, optimum = np.sum(pairs, axis=0)
        return float(lost / optimum - 1)
