"""Show in virtual time how close a policy comes to the optimum.

Runs a built-in scenario, a cluster of the paper, or a cluster file, under a policy; plain BSP and
an oracle that knows the noise run on the same noise for comparison. A sentence says how much faster
than plain BSP the policy is, and how far from the oracle, which is the optimum. All figures are
simulated; docs/simulate.md defines them.

examples:
  evenstep simulate G
  evenstep simulate G --policy stepwise --workers 16 --seeds 0-7
  evenstep simulate P --predictor ema --plot p.png --log p.jsonl
  evenstep simulate A:12,model=resnet32
  evenstep simulate examples/clusters/mixed_gpus.toml --json
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from evenstep.cli.arguments import add_seeds, count, seeds_of, whole
from evenstep.cli.printing import print_json
from evenstep.cli.simulate_view import Display, headline, print_figures, print_workers
from evenstep.cli.simulation_log import SimulationLog
from evenstep.core import Plan
from evenstep.errors import InvalidSetting
from evenstep.insight.plots.drawing import check_format
from evenstep.policies import POLICIES, WRAPPERS
from evenstep.predictors import PREDICTORS
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.registry import SUMMARIES, make_cluster
from evenstep.simulator.engine.iteration import Iteration
from evenstep.simulator.engine.simulation import Setup, SimulationOutcome, median_figures, simulate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    named = "; ".join(f"{name}: {summary}" for name, summary in SUMMARIES.items())
    parser.add_argument(
        "cluster",
        nargs="?",
        metavar="CLUSTER",
        help=f"{named}; or a cluster file, docs/cluster_file.md",
    )
    parser.add_argument(
        "--policy",
        metavar="P",
        help=f"{', '.join(POLICIES)}; settings and wrappers ({', '.join(WRAPPERS)}) are given "
        "like stepwise:step=10+every_n:n=5",
    )
    parser.add_argument(
        "--predictor",
        metavar="Q",
        help=f"{', '.join(PREDICTORS)}; settings are given like ema:alpha=0.5",
    )
    parser.add_argument("--workers", type=count, metavar="N", help="number of workers")
    parser.add_argument("--iterations", type=count, metavar="K", help="length of the run")
    add_seeds(parser)
    parser.add_argument(
        "--delay", type=whole, default=0, metavar="D", help="plans take effect D iterations late"
    )
    parser.add_argument("--noise-free", action="store_true", help="no noise and no spikes")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--plot", metavar="FILE", help="picture of the first seed, .png or .svg")
    parser.add_argument("--log", metavar="FILE", help="run log of the first seed, JSON lines")


def run(args: argparse.Namespace) -> int:
    if args.plot is not None:
        # Check it now, not after a long run.
        check_format(args.plot)
    seeds = seeds_of(args)
    with Display(len(seeds)) as display:
        outcomes = [_simulate(args, seed, i, display) for i, seed in enumerate(seeds)]
    figures = [
        {"seed": seed, **outcome.figures()} for seed, outcome in zip(seeds, outcomes, strict=True)
    ]
    result = {
        "headline": headline(figures, outcomes[0].scored_from),
        "seeds": figures,
        "medians": median_figures(figures),
    }
    if args.json:
        print_json(result)
    else:
        _print(args, outcomes[0], result)
    return 0


def _cluster(args: argparse.Namespace, seed: int) -> Cluster:
    if args.cluster is None:
        raise InvalidSetting(
            f"give a cluster: one of {', '.join(SUMMARIES)}, or a cluster file; got none"
        )
    noisy = not args.noise_free
    return make_cluster(args.cluster, args.workers, args.iterations, seed, noisy)


def _setup(args: argparse.Namespace, cluster: Cluster) -> Setup:
    return Setup.of(cluster, args.policy, args.predictor, args.delay)


def _simulate(
    args: argparse.Namespace, seed: int, num_done: int, display: Display
) -> SimulationOutcome:
    """Simulate one seed; the first one is recorded if a log or a picture is wanted."""
    display.set_up(num_done)
    cluster = _cluster(args, seed)
    setup = _setup(args, cluster)
    watch_live = display.watch(cluster, setup, seed)
    if num_done or not (args.log or args.plot):
        return simulate(cluster, setup, cluster.iterations, watch_live, display.track)
    with SimulationLog(cluster, setup, seed, args.log) as recording:

        def watch(iteration: Iteration, plan: Plan) -> None:
            recording(iteration, plan)
            watch_live(iteration, plan)

        outcome = simulate(cluster, setup, cluster.iterations, watch, display.track)
        recording.end(cluster.iterations)
        if args.plot:
            recording.plot(args.plot, outcome)
    return outcome


def _print(args: argparse.Namespace, first: SimulationOutcome, result: Mapping[str, Any]) -> None:
    print_workers(first, _setup(args, first.cluster), result["seeds"][0]["seed"])
    print_figures(result, first.cluster)
    for name, path in (("plot", args.plot), ("run log", args.log)):
        if path:
            print(f"{name}: {path}")
