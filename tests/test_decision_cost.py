"""A decision works on arrays: what it costs in Python does not depend on the number of workers."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest

from evenstep.core import Reports
from evenstep.core.planner import Planner
from evenstep.policies import make_policy
from evenstep.predictors import make_predictor

SETUPS = [
    ("equal_finish", None),
    ("proportional", "best_of"),
    ("cautious", "best_of"),
    ("even", None),
]


def planner_of(num_workers: int, policy: str, predictor: str | None) -> Planner:
    return Planner(
        [f"w{i}" for i in range(num_workers)],
        32 * num_workers,
        make_policy(policy),
        make_predictor(predictor, num_workers) if predictor else None,
    )


def reports_of(planner: Planner, iteration: int) -> Reports:
    n = len(planner.workers)
    speeds = np.linspace(20.0, 90.0, n)
    sizes = planner.plan.sizes
    times = 0.1 + sizes / speeds
    share = np.linspace(0.3, 1.0, n)
    return Reports(iteration, sizes, times, share, share, np.minimum(0.3 + sizes / 500, 1.0))


class Observer:
    """Counts the lines that a decision runs, and the most memory blocks alive at any of them."""

    def __init__(self) -> None:
        self.lines = 0
        self.blocks = 0
        gc.collect()
        self._before = sys.getallocatedblocks()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Observer:
        self.lines += event == "line"
        self.blocks = max(self.blocks, sys.getallocatedblocks() - self._before)
        return self


def observed_decision(num_workers: int, policy: str, predictor: str | None) -> Observer:
    planner = planner_of(num_workers, policy, predictor)
    for k in range(4):
        planner.decide(reports_of(planner, k))
    reports = reports_of(planner, 4)
    observer = Observer()
    before = sys.gettrace()
    sys.settrace(observer)
    try:
        planner.decide(reports)
    finally:
        sys.settrace(before)
    return observer


@pytest.mark.parametrize(("policy", "predictor"), SETUPS)
def test_a_decision_makes_no_python_object_per_worker(policy: str, predictor: str | None) -> None:
    assert observed_decision(20_000, policy, predictor).blocks < 2_000


@pytest.mark.parametrize(("policy", "predictor"), SETUPS)
def test_a_decision_runs_no_python_line_per_worker(policy: str, predictor: str | None) -> None:
    few, many = (observed_decision(n, policy, predictor).lines for n in (200, 20_000))
    # 19,800 more workers; the search for the water level takes a few more turns.
    assert many < few + 1_000
