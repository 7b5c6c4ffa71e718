"""How well each predictor serves Alg. 1 on the CPU scenarios, next to its targets.

All figures are simulated (virtual time), medians over seeds: iteration time over the oracle's,
and RMSE of the predicted speeds. Seeds 0-3 were used while the predictors were written;
`--seeds 100-103` were looked at only once, at the end.

    python -m benchmarks.predictors [--seeds 0-3] [--only kalman,ema] [--iterations 1500] [--json]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from benchmarks.report import Row, progress, show
from evenstep.cli.arguments import parse_seeds
from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.engine.simulation import Setup, SimulationOutcome, simulate

PREDICTORS = (
    "best_of",
    "kalman",
    "narx",
    "narx:reuse=false",
    "ema",
    "median",
    "memoryless",
    "arima",
    "rnn",
    "lstm",
)
SCENARIOS = ("P", "S", "M")
TO_REACH = {"P": 1.27, "S": 1.30, "M": 1.30}
"""Iteration time over the oracle's that best_of is to reach (at most)."""


def outcomes(
    predictor: str, scenario: str, seeds: list[int], iterations: int
) -> list[SimulationOutcome]:
    setup = Setup("proportional", predictor)
    return [
        simulate(make_scenario(scenario, iterations=iterations, seed=seed), setup, iterations)
        for seed in seeds
    ]


def table(names: list[str], seeds: list[int], iterations: int) -> Iterator[Row]:
    """Every predictor in every scenario: time over the oracle's, and RMSE."""
    yield {
        "predictor": "best_of, to reach: at most",
        **{f"{s} time": g for s, g in TO_REACH.items()},
        **{f"{s} rmse": "" for s in SCENARIOS},
    }
    for i, name in enumerate(progress(names, "predictors")):
        runs = {s: outcomes(name, s, seeds, iterations) for s in SCENARIOS}
        if i == 0:
            yield {
                "predictor": "knows the speed but for noise",
                **{f"{s} time": _knowing(runs[s]) for s in SCENARIOS},
                **{f"{s} rmse": "" for s in SCENARIOS},
            }
        figures = {s: [run.figures() for run in runs[s]] for s in SCENARIOS}
        yield {
            "predictor": name,
            **{
                f"{s} {column}": float(np.median([f[figure] for f in figures[s]]))
                for column, figure in (("time", "time_over_oracle"), ("rmse", "rmse"))
                for s in SCENARIOS
            },
        }


def _knowing(runs: list[SimulationOutcome]) -> float:
    """Return the time over the oracle's with all known but noise, spikes and coming changes."""
    scored = slice(runs[0].cluster.score_from, None)
    return float(
        np.median([r.optimum_realised[scored].sum() / r.oracle[scored].sum() for r in runs])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-3")
    parser.add_argument("--only", help="predictors, separated by commas")
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(PREDICTORS)
    title = f"proportional, simulated, 32 workers, medians over seeds {args.seeds}"
    show(title, table(names, parse_seeds(args.seeds), args.iterations), args.json)


if __name__ == "__main__":
    main()
