"""How fast and how well each policy settles on scenario G, next to its targets.

All figures are simulated (virtual time), medians over seeds. Seeds 0-7 were used while the
policies were written; `--seeds 100-107` were looked at only once, at the end.

    python -m benchmarks.policies [--seeds 0-7] [--quick] [--json]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from benchmarks.report import Row, progress, show
from evenstep.cli.arguments import parse_seeds
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.scenarios import gpu, make_scenario
from evenstep.simulator.engine.simulation import medians

POLICIES = ("equal_finish", "stepwise", "stepwise:literal=true", "proportional", "even")
TO_REACH: dict[int, dict[str, float]] = {
    4: {"settle_5": 6, "settle_5_after": 8, "waste": 0.015, "changes_per_100": 2},
    16: {"settle_5": 8, "settle_5_after": 8, "waste": 0.015, "changes_per_100": 2},
    64: {"settle_5": 10, "settle_5_after": 8, "waste": 0.025, "changes_per_100": 2},
    256: {"settle_5": 15, "settle_5_after": 8, "waste": 0.025, "changes_per_100": 2},
}
"""Targets of equal_finish on G (at most)."""
COLUMNS = (
    "settle_5",
    "settle_2",
    "settle_5_after",
    "waste",
    "changes_per_100",
    "overruns",
    "time_over_bsp",
)


def settling(seeds: list[int], sizes: list[int]) -> Iterator[Row]:
    """The table of algorithms: every policy on G at several numbers of workers."""
    yield _row("equal_finish, noise-free", 4, [make_scenario("G", 4, noisy=False)], "equal_finish")
    yield _row("stepwise, noise-free", 4, [make_scenario("G", 4, noisy=False)], "stepwise")
    for num_workers, policy in progress([(n, p) for n in sizes for p in POLICIES], "settling"):
        clusters = [make_scenario("G", num_workers, seed=seed) for seed in seeds]
        yield _row(policy, num_workers, clusters, policy)
        if policy == "equal_finish":
            goal = TO_REACH[num_workers]
            yield {
                "policy": "  to reach: at most",
                "workers": num_workers,
                **{name: goal.get(name, "") for name in COLUMNS},
            }


def conditions(seeds: list[int]) -> Iterator[Row]:
    """Further targets of equal_finish: late plans, equal workers, memory limits."""
    late = medians([make_scenario("G", 16, seed=s) for s in seeds], "equal_finish", delay=1)
    yield _check("plans one iteration late, 16 workers", "waste", late["waste"], 0.02)
    equal = medians([make_scenario("identical", 16, seed=s) for s in seeds], "equal_finish")
    yield _check("identical workers", "waste", equal["waste"], 0.001)
    caps = range(40, 100)
    overruns = sum(
        medians([gpu(4, 150, seed, v100_cap=cap)], "equal_finish")["overruns"]
        for seed in seeds[:2]
        for cap in progress(list(caps), f"memory caps, seed {seed}")
    )
    yield _check("V100 memory caps 40-99", "overruns", overruns, 0)


def _row(label: str, num_workers: int, clusters: list[Cluster], policy: str) -> Row:
    figures = medians(clusters, policy)
    return {
        "policy": label,
        "workers": num_workers,
        **{name: figures[name] for name in COLUMNS},
    }


def _check(what: str, figure: str, value: float, at_most: float) -> Row:
    return {
        "equal_finish with": what,
        "figure": figure,
        "value": value,
        "to reach: at most": at_most,
        "reached": "yes" if value <= at_most else "NO",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-7")
    parser.add_argument("--quick", action="store_true", help="4 and 16 workers only")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    seeds = parse_seeds(args.seeds)
    sizes = [4, 16] if args.quick else list(TO_REACH)
    title = f"scenario G, simulated, medians over seeds {args.seeds}"
    show(title, settling(seeds, sizes), args.json)
    show(f"conditions, simulated, seeds {args.seeds}", conditions(seeds), args.json)


if __name__ == "__main__":
    main()
