"""The cost of a decision on this machine: observe and plan, for many workers."""

from __future__ import annotations

import time

import numpy as np

from evenstep.core import Reports
from evenstep.core.planner import Planner
from evenstep.policies import make_policy
from evenstep.predictors import make_predictor

_WARM_UP = 3


def milliseconds(policy: str, predictor: str | None, num_workers: int, repeat: int) -> float:
    """Return the median time of a decision on workers of a wide spread of speeds."""
    rng = np.random.default_rng(0)
    planner = Planner(
        [f"w{i}" for i in range(num_workers)],
        32 * num_workers,
        make_policy(policy),
        make_predictor(predictor, num_workers) if predictor else None,
    )
    speeds = np.exp(rng.normal(4, 0.5, num_workers))
    durations = []
    for k in range(repeat + _WARM_UP):
        reports = _reports(planner, speeds, k, rng)
        start = time.perf_counter()
        planner.decide(reports)
        durations.append(time.perf_counter() - start)
    return 1e3 * float(np.median(durations[_WARM_UP:]))


def _reports(
    planner: Planner, speeds: np.ndarray, iteration: int, rng: np.random.Generator
) -> Reports:
    n = len(speeds)
    sizes = planner.plan.sizes
    times = (0.1 + sizes / speeds) * np.exp(0.03 * rng.standard_normal(n))
    share = rng.uniform(0.3, 1, n)
    return Reports(iteration, sizes, times, share, share, np.minimum(0.3 + sizes / 500, 1))
