"""The cost of a decision: milliseconds for observe + plan, and its growth with the workers.

Measured on this machine; compare the figures of one run with each other.

    python -m benchmarks.decision [--repeat 15] [--json]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

from benchmarks.report import Row, progress, show
from reproduction.decision_cost import milliseconds

SETUPS = (("equal_finish", None), ("proportional", "best_of"))
WORKERS = (32, 1_000, 10_000, 100_000)
TO_REACH = 20.0
"""Milliseconds for 10,000 workers (at most)."""


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
