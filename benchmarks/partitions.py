"""The paper's verification of migrations (section 3.5), in virtual time with real gradients.

Five workers with two classes each and batches of 64, 96, 128, 160 and 192 train a net on local
partitions: mixed ones (i.i.d.), skewed ones left alone, skewed ones with migrations that keep the
gap of traversal counts at 2, and skewed ones with importance weights. scikit-learn's digits are
few, so batches are an eighth of the paper's there; CIFAR-10 comes from a path, with its own sizes.

    python -m benchmarks.partitions [--data PATH | --workload SPEC] [--batch-sizes 64,96,...]
        [--updates 400] [--seeds 0-4] [--stratified] [--target 0.9] [--plot FILE] [--json] [--ray]

It prints medians over seeds, with `--json` the curves of every run. With `--ray` every worker is a
process with its own partition; accuracy after as many updates is the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.partitions_plot import plot
from benchmarks.report import Row, progress, show
from evenstep.cli.arguments import parse_seeds
from evenstep.simulator.workloads.registry import make_workload
from reproduction.partition_study import (
    CASES,
    DIGITS_SIZES,
    LATE,
    PAPERS_SIZES,
    Result,
    Study,
    train,
)
from reproduction.small_net import cifar10


def figures(result: Result) -> Row:
    """Return all figures of a run, for JSON."""
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in vars(result).items()
    }


def curves(results: Sequence[Result]) -> Iterator[Row]:
    """Return test accuracy in the course of the training: median over seeds, least and most."""
    last = results[0].updates[-1]
    for case, runs in by_case(results).items():
        after = [last // 8, last // 4, last // 2]
        middle = {
            f"after {updates}": spread([run.accuracy_after(updates) for run in runs])
            for updates in after
        }
        losses = [float(run.loss[-LATE:].mean()) for run in runs]
        yield {
            "test accuracy": case,
            **middle,
            "at the end": spread([run.late for run in runs]),
            "test loss at the end": spread(losses),
        }


def comparison(results: Sequence[Result], target: float) -> Iterator[Row]:
    """Compare each case with i.i.d. data, seed by seed."""
    cases = by_case(results)
    half = results[0].updates[-1] // 2
    even = cases["i.i.d."]
    for case, runs in cases.items():
        pairs = list(zip(runs, even, strict=True))
        early = [100 * (a.accuracy_after(half) - b.accuracy_after(half)) for a, b in pairs]
        late = [100 * (a.late - b.late) for a, b in pairs]
        reached = [run.reached(target) for run in runs]
        yield {
            "points above i.i.d.": case,
            f"after {half}": spread(early, "+.1f"),
            "at the end": spread(late, "+.1f"),
            "mean and its error": error(late),
            f"updates to {target:g}": median_updates(reached),
            "largest gap": max(run.gap for run in runs),
            "samples moved": runs[0].num_moved,
            "over the fewest": max(run.num_moved / run.fewest for run in runs),
        }


def by_case(results: Sequence[Result]) -> Mapping[str, list[Result]]:
    return {case: [r for r in results if r.case == case] for case in CASES}


def spread(values: Sequence[float], form: str = ".3f") -> str:
    low, middle, high = (format(f(values), form) for f in (np.min, np.median, np.max))
    return f"{middle} ({low} to {high})"


def error(values: Sequence[float]) -> str:
    """Return the mean with its standard error."""
    if len(values) < 2:
        return f"{np.mean(values):+.2f}"
    return f"{np.mean(values):+.2f} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.2f}"


def median_updates(reached: Sequence[int | None]) -> float | None:
    """Return the median; never counts as later than all."""
    median = float(np.median([np.inf if updates is None else updates for updates in reached]))
    return median if np.isfinite(median) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="CIFAR-10: its folder of Python batches, or an .npz file")
    parser.add_argument("--workload", default="mlp", help="in short form, without --data")
    parser.add_argument("--batch-sizes", help="default: the paper's, or an eighth of them")
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--optimizer", default="sgd:learning_rate=0.1")
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("0-4"))
    parser.add_argument("--threshold", type=float, default=2.0, help="of the gap of traversals")
    parser.add_argument("--stratified", action="store_true", help="migrations mix classes")
    parser.add_argument("--target", type=float, default=0.9, help="accuracy to count updates to")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.add_argument("--ray", action="store_true", help="workers are processes, on Ray")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    study = study_of(args)
    work = list(product(args.seeds, CASES))
    results = [train(study, case, seed, args.ray) for seed, case in progress(work, "training")]
    sizes = ", ".join(map(str, study.batch_sizes))
    clock = "on Ray" if args.ray else "simulated time"
    title = f"{study.workload.name}, batches of {sizes}, {len(args.seeds)} seeds ({clock})"
    if args.json:
        show(title, map(figures, results), as_json=True)
    else:
        show(title, curves(results), as_json=False)
        show(f"{title}: against i.i.d. data", comparison(results, args.target), as_json=False)
    if args.plot:
        plot(args.plot, title, by_case(results))


def study_of(args: Any) -> Study:
    workload = cifar10(args.data) if args.data else make_workload(args.workload)
    sizes = PAPERS_SIZES if args.data else DIGITS_SIZES
    if args.batch_sizes:
        sizes = tuple(int(size) for size in args.batch_sizes.split(","))
    return Study(workload, sizes, args.updates, args.optimizer, args.threshold, args.stratified)


if __name__ == "__main__":
    main()
