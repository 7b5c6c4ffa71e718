"""How well do the estimates agree with the truth? Simulated runs, whose truth is known.

Runs each scenario with 4 to 200 workers, plain and balanced, and compares plain BSP's iteration
time and the gain, estimated from the run log alone, with the simulated truth in the same
conditions. All figures are simulated.

examples:
  python -m benchmarks.estimates
  python -m benchmarks.estimates --seed 7 --policy equal_finish --json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from evenstep.core import UNLIMITED, Limits, Plan, even_sizes
from evenstep.estimates import Estimates, Estimator
from evenstep.runlog import Header, IterationRow
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.registry import make_cluster
from evenstep.simulator.engine.iteration import Iteration
from evenstep.simulator.engine.simulation import Setup, SimulationOutcome, simulate

SCENARIOS, WORKERS, ITERATIONS = "GPSM", (4, 16, 32, 64, 200), 300
CLOSE = 0.05
ALIKE = 0.02
"""Workers whose times differ by less are not told apart."""


@dataclass(frozen=True)
class Compared:
    """One run: the truth, and what was estimated."""

    scenario: str
    workers: int
    policy: str
    plain: float
    """The truth, as the gain below."""
    gain: float
    estimated_plain: float
    estimated_gain: float
    low: float
    high: float
    above_optimum: float
    straggler: bool
    """Whether the named straggler is the true one, or takes as long as that within 2 %."""

    @property
    def error(self) -> float:
        return self.estimated_plain / self.plain - 1

    @property
    def contained(self) -> bool:
        return self.low * (1 - 1e-9) <= self.plain <= self.high * (1 + 1e-9)

    @property
    def width(self) -> float:
        return (self.high - self.low) / self.estimated_plain


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=101, help="101; the method was tuned on 1 to 3")
    parser.add_argument("--policy", help="of the balanced runs; default: the scenario's")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    runs = []
    for run in compare(args.seed, args.policy, args.workers):
        runs.append(run)
        if not args.json:
            print(line(run), flush=True)
    verdict = summary(runs)
    if args.json:
        print(json.dumps({"runs": [asdict(run) for run in runs], **verdict}, indent=1))
    else:
        print(", ".join(f"{name} {value}" for name, value in verdict.items()))
    return 0


def compare(seed: int, policy: str | None, workers: tuple[int, ...]) -> Iterator[Compared]:
    """Yield the comparison of each run."""
    for scenario in SCENARIOS:
        for count in workers:
            for name in ("even", policy):
                print(f"{scenario} x {count} ...", end="\r", file=sys.stderr)
                yield compare_one(scenario, count, name, seed)


def compare_one(scenario: str, workers: int, policy: str | None, seed: int) -> Compared:
    """Simulate a run, and compare its estimates with the truth in the same iterations."""
    cluster = make_cluster(scenario, workers, ITERATIONS, seed)
    setup = Setup.of(cluster, policy, None, 0)
    estimator = Estimator(
        Header(
            "simulated", scenario, tuple(cluster.workers), cluster.total, setup.policy,
            setup.predictor or "none",
        )
    )  # fmt: skip

    def watch(iteration: Iteration, plan: Plan) -> None:
        times = np.where(iteration.sizes > 0, iteration.times, np.nan)
        caps = np.minimum(cluster.cap, UNLIMITED)
        row = (iteration.number, plan.number, iteration.start, iteration.sizes, times)
        estimator.take(IterationRow(*row, caps=caps))

    outcome = simulate(cluster, setup, ITERATIONS, watch)
    estimates = estimator.estimates()
    assert estimates is not None
    return _compared(cluster, outcome, setup.policy, estimates)


def _compared(
    cluster: Cluster, outcome: SimulationOutcome, policy: str, estimates: Estimates
) -> Compared:
    window = slice(estimates.first, estimates.last + 1)
    plain, actual = float(outcome.bsp[window].mean()), float(outcome.realised[window].mean())
    even = even_sizes(cluster.total, Limits.of(cluster.num_workers))
    conditions = [cluster.conditions(k, 0.0) for k in range(estimates.first, estimates.last + 1)]
    each = np.mean([cluster.expected_times(even, at) for at in conditions], axis=0)
    assert estimates.straggler is not None
    named = each[list(cluster.workers).index(estimates.straggler.worker)]
    return Compared(
        scenario=cluster.name, workers=cluster.num_workers, policy=policy,
        plain=plain, gain=plain / actual,
        estimated_plain=estimates.plain.value, estimated_gain=estimates.gain.value,
        low=estimates.plain.low, high=estimates.plain.high,
        above_optimum=estimates.above_optimum,
        straggler=bool(named >= (1 - ALIKE) * each.max()),
    )  # fmt: skip


def line(run: Compared) -> str:
    """Return a run as a line of text."""
    return (
        f"{run.scenario} x {run.workers:3d}, {run.policy:12}: plain BSP {run.plain:6.3f} s, "
        f"estimated {run.estimated_plain:6.3f} ({run.error:+.1%}), range {run.low:.3f} to "
        f"{run.high:.3f} {'holds it' if run.contained else 'MISSES IT'}; gain {run.gain:.2f}, "
        f"estimated {run.estimated_gain:.2f}; straggler {'right' if run.straggler else 'WRONG'}"
    )


def summary(runs: list[Compared]) -> dict[str, object]:
    """Return the verdict on all runs."""
    moved = [run.width for run in runs if run.policy != "even"]
    return {
        "runs": len(runs),
        "within 5 %": sum(abs(run.error) <= CLOSE for run in runs),
        "range holds the truth": sum(run.contained for run in runs),
        "median width": round(float(np.median([run.width for run in runs])), 4),
        "median width of balanced runs": round(float(np.median(moved)), 4) if moved else None,
        "straggler right": sum(run.straggler for run in runs),
        "below the optimum": sum(run.above_optimum < 0 for run in runs),
    }


if __name__ == "__main__":
    raise SystemExit(main())
