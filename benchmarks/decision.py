"""What a decision costs: milliseconds for observe + plan, and how that grows with the workers.

Measured on this machine; compare the figures of one run with each other.

    python -m benchmarks.decision [--repeat 15] [--json]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.report import Row, progress, show
from evenstep.balancer import Balancer
from evenstep.core.report import Reports
from evenstep.policies import make_policy
from evenstep.predictors import make_predictor

SETUPS = (("equal_finish", None), ("proportional", "best_of"))
WORKERS = (32, 1_000, 10_000, 100_000)
TO_REACH = 20.0
"""Milliseconds for 10,000 workers (at most)."""


def milliseconds(policy: str, predictor: str | None, num_workers: int, repeat: int) -> float:
    """Return the median time of a decision on workers of a wide spread of speeds."""
    rng = np.random.default_rng(0)
    balancer = Balancer(
        [f"w{i}" for i in range(num_workers)],
        32 * num_workers,
        make_policy(policy),
        make_predictor(predictor, num_workers) if predictor else None,
    )
    speeds = np.exp(rng.normal(4, 0.5, num_workers))
    durations = []
    for k in range(repeat + 3):
        reports = _reports(balancer, speeds, k, rng)
        start = time.perf_counter()
        balancer.decide(reports)
        durations.append(time.perf_counter() - start)
    return 1e3 * float(np.median(durations[3:]))


def _reports(
    balancer: Balancer, speeds: np.ndarray, iteration: int, rng: np.random.Generator
) -> Reports:
    n = len(speeds)
    sizes = balancer.plan.sizes
    times = (0.1 + sizes / speeds) * np.exp(0.03 * rng.standard_normal(n))
    share = rng.uniform(0.3, 1, n)
    return Reports(iteration, sizes, times, share, share, np.minimum(0.3 + sizes / 500, 1))


def table(repeat: int) -> Iterator[Row]:
    for policy, predictor in SETUPS:
        costs = {n: milliseconds(policy, predictor, n, repeat) for n in progress(WORKERS, policy)}
        growth = math.log(costs[100_000] / costs[10_000]) / math.log(10)
        yield {
            "decision": policy + (f" x {predictor}" if predictor else ""),
            **{f"{n:,} workers, ms": cost for n, cost in costs.items()},
            "growth exponent 10k-100k": growth,
            "10k within 20 ms": "yes" if costs[10_000] <= TO_REACH else "NO",
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    show("cost of a decision, measured", table(args.repeat), args.json)


if __name__ == "__main__":
    main()
