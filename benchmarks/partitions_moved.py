"""How many samples migrations move under policies that learn the speeds, in virtual time.

Timing-only: partitions follow the batch sizes that a policy arrives at. The fewest is what a single
migration has to move for partition sizes in proportion to what each worker consumed in the whole
run, so where speeds change in the course of it, following them takes more.

    python -m benchmarks.partitions_moved [--seeds 0-5] [--json]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.report import Row, progress, show
from evenstep.cli.arguments import parse_seeds
from evenstep.clusters.scenarios import make_scenario
from evenstep.core.limits import Limits
from evenstep.engines.local_samples import LocalSamples
from evenstep.engines.planners import BalancedPlanner
from evenstep.engines.simulation import Setup
from evenstep.engines.virtual import VirtualEngine
from evenstep.partition import MigrationRule, plan_migration, target_sizes
from evenstep.partition.dealing import deal_mixed


class Case(NamedTuple):
    """A scenario, its policy, and the samples that its workers share."""

    scenario: str
    num_workers: int
    setup: Setup
    num_samples: int
    iterations: int
    """In G something changes at 150, in P all the time."""


CASES = (
    Case("G", 4, Setup("equal_finish"), 1536, 140),
    Case("G", 16, Setup("equal_finish"), 10_000, 140),
    Case("G", 4, Setup("equal_finish"), 10_000, 560),
    Case("P", 32, Setup("proportional", "kalman"), 50_000, 600),
)


def run(case: Case, seed: int) -> tuple[int, float]:
    """Return how many migrations there were, and the samples moved over the fewest."""
    n = case.num_workers
    cluster = make_scenario(case.scenario, n, case.iterations, seed)
    samples = LocalSamples(deal_mixed(case.num_samples, n, seed), rule=MigrationRule())
    planner = BalancedPlanner(case.setup.balancer(cluster))
    engine = VirtualEngine(cluster, planner, at_boundary=samples.boundary)
    before, consumed = samples.sizes, np.zeros(n, dtype=np.int64)
    for iteration in engine.run(case.iterations):
        for worker in range(n):
            samples.deal(worker, iteration.number, iteration.sizes)
        consumed += iteration.sizes
    targets = target_sizes(case.num_samples, consumed, Limits.of(n))
    moved = sum(migration.plan.num_moved for migration in samples.migrations)
    return len(samples.migrations), moved / plan_migration(before, targets).num_moved


def moved(seeds: Sequence[int]) -> Iterator[Row]:
    """Measure every case."""
    for case in progress(CASES, "migrating"):
        counts, ratios = zip(*(run(case, seed) for seed in seeds), strict=True)
        yield {
            "scenario": case.scenario,
            "workers": case.num_workers,
            "samples": case.num_samples,
            "iterations": case.iterations,
            "migrations, median": float(np.median(counts)),
            "moved over the fewest, median": float(np.median(ratios)),
            "most": max(ratios),
            "within 1.2": "yes" if max(ratios) <= 1.2 else "NO",
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("0-5"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    show("samples moved by migrations (simulated)", moved(args.seeds), args.json)


if __name__ == "__main__":
    main()
