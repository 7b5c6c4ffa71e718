"""How many samples migrations move under policies that learn the speeds, in virtual time.

Timing-only: partitions follow the batch sizes that a policy arrives at. The fewest is what a single
migration has to move for partition sizes in proportion to what each worker consumed in the whole
run. Where speeds change in the course of it that would not do: counts drift apart on the way. So
the gap that a single migration leads to is shown too, and the fewest samples that, with knowledge
of the future, would have to move to keep the rule's bound (`partitions_clairvoyant`).

    python -m benchmarks.partitions_moved [--seeds 0-5] [--json]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.partitions_clairvoyant import fewest_within, widest_gap
from benchmarks.report import Row, progress, show
from evenstep.cli.arguments import parse_seeds
from evenstep.core import Limits
from evenstep.partitions import MigrationRule, deal_mixed, plan_migration, target_sizes
from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.engine.local_samples import LocalSamples
from evenstep.simulator.engine.planners import BalancedPlanner
from evenstep.simulator.engine.simulation import Setup
from evenstep.simulator.engine.virtual import VirtualEngine


class Case(NamedTuple):
    """A scenario, its policy, and the samples that its workers share."""

    scenario: str
    num_workers: int
    setup: Setup
    num_samples: int
    iterations: int
    """In G something changes at 150, in P all the time."""


EVERY = 10
"""Iterations between two moments at which a clairvoyant may migrate."""
CASES = (
    Case("G", 4, Setup("equal_finish"), 1536, 140),
    Case("G", 16, Setup("equal_finish"), 10_000, 140),
    Case("G", 4, Setup("equal_finish"), 10_000, 560),
    Case("P", 32, Setup("proportional", "kalman"), 50_000, 600),
)


class Outcome(NamedTuple):
    """The figures of a run."""

    migrations: int
    moved: int
    fewest: int
    """What a single migration moves."""
    gap: float
    """How far apart counts get with that."""
    within: float
    """The fewest samples to move, with knowledge of the future, to keep the bound."""
    largest_gap: float
    """How far apart counts were at any boundary, since the last migration."""


def run(case: Case, seed: int) -> Outcome:
    """Let a policy learn the speeds, and partitions follow."""
    n = case.num_workers
    cluster = make_scenario(case.scenario, n, case.iterations, seed)
    samples = LocalSamples(deal_mixed(case.num_samples, n, seed), rule=MigrationRule())
    planner = BalancedPlanner(case.setup.balancer(cluster))
    engine = VirtualEngine(cluster, planner, at_boundary=samples.boundary)
    before, rows, gap = samples.sizes, [], 0.0
    for iteration in engine.run(case.iterations):
        gap = max(gap, samples.traversals.gap)
        for worker in range(n):
            samples.deal(worker, iteration.number, iteration.sizes)
        rows.append(iteration.sizes)
    batch_sizes = np.array(rows)
    targets = target_sizes(case.num_samples, batch_sizes.sum(axis=0), Limits.of(n))
    return Outcome(
        len(samples.migrations),
        sum(migration.plan.num_moved for migration in samples.migrations),
        plan_migration(before, targets).num_moved,
        widest_gap(targets, batch_sizes),
        fewest_within(MigrationRule().threshold, before, batch_sizes, EVERY),
        max([gap, *(migration.gap for migration in samples.migrations)]),
    )


def moved(seeds: Sequence[int]) -> Iterator[Row]:
    """Measure every case."""
    for case in progress(CASES, "migrating"):
        found = [run(case, seed) for seed in seeds]
        ratios = [one.moved / one.fewest for one in found]
        yield {
            "scenario": case.scenario,
            "workers": case.num_workers,
            "samples": case.num_samples,
            "iterations": case.iterations,
            "migrations, median": float(np.median([one.migrations for one in found])),
            "largest gap": max(one.largest_gap for one in found),
            "moved over the fewest, median": float(np.median(ratios)),
            "most": max(ratios),
            "within 1.2": "yes" if max(ratios) <= 1.2 else "NO",
            "gap of the fewest, median": float(np.median([one.gap for one in found])),
            "moved over clairvoyant, median": float(
                np.median([one.moved / one.within for one in found])
            ),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("0-5"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    show("samples moved by migrations (simulated)", moved(args.seeds), args.json)


if __name__ == "__main__":
    main()
