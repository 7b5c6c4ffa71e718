"""Train under several schemes, and compare them with BSP.

BSP, ASP, SSP, backup workers, FlexRR and LB-BSP train the same workload on the same cluster, with
the same noise. The gradients are real; all times are virtual, by the clock of the cluster. With
--engine ray, workers are real processes, slowed down to the cluster's times or at full speed. The
results are the time per update (hardware efficiency), the updates to the target (statistical
efficiency) and the time to the target, each also divided by BSP's, as medians over seeds with
their intervals; a scheme is called the best only if the intervals say so. An update is n gradients
under every scheme, one for each worker; docs/compare.md.

Without options, it trains a small net on scikit-learn's digits on four GPUs with 20 seeds, in less
than a minute.

examples:
  evenstep compare
  evenstep compare B --workload svm --target 0.9 --seeds 0-5 --plot compare.png
  evenstep compare --schemes ssp:bound=3,lb-bsp:stepwise --optimizer momentum
  evenstep compare --schemes flexrr,sequential-bsp
  evenstep compare A --workload resnet32 --data cifar-10-batches-py --seeds 0
  evenstep compare P --workload none --json
  evenstep compare --engine ray --iterations 50
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from evenstep.cli.arguments import add_seeds, count, positive, seeds_of, share
from evenstep.cli.compare_view import Display, displayed, print_result, result_of
from evenstep.cli.printing import busy, print_json
from evenstep.cli.stopping import interrupt_on_signals
from evenstep.core.short_form import parse_spec
from evenstep.errors import InvalidSetting
from evenstep.insight.plots.drawing import check_format
from evenstep.predictors import PREDICTORS
from evenstep.simulator.clusters.registry import SUMMARIES
from evenstep.simulator.engine.comparison import MOST_UPDATES, Comparison
from evenstep.simulator.engine.comparison_figures import ComparisonFigures
from evenstep.simulator.engine.registry import EMULATED_SCALE, ENGINES, Engine
from evenstep.simulator.engine.run import SMOOTHED_OVER
from evenstep.simulator.engine.scheme_specs import CONTENDERS, SchemeSpec, parse_scheme_specs

if TYPE_CHECKING:
    from evenstep.simulator.workloads.workload import Workload

SCHEMES = "bsp,asp,ssp,backup,flexrr,lb-bsp"
TARGET, ITERATIONS = 0.95, 200
"""The defaults if neither is given."""
SEEDS = {"virtual": "0-19", "ray": "0"}
"""The default seeds of each engine: runs on Ray take real time."""
LEARNING_RATES = {"sgd": 0.3, "momentum": 0.05, "adam": 0.01}
"""Default learning rates, good for the digits."""
MOMENTUM = 0.9
NO_WORKLOAD = "none"
TRAINING = {"data": None, "optimizer": "sgd", "learning_rate": None, "shards": 1, "threads": 1}
"""The options for training a workload, and their defaults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "cluster",
        nargs="?",
        default="A:4",
        metavar="CLUSTER",
        help=f"one of {', '.join(SUMMARIES)}, or a cluster file; default A:4",
    )
    parser.add_argument("--workers", type=count, metavar="N", help="number of workers")
    parser.add_argument("--total", type=count, metavar="X", help="samples of one iteration")
    parser.add_argument("--noise-free", action="store_true", help="no noise and no spikes")
    parser.add_argument(
        "--workload",
        default="mlp",
        metavar="W",
        help="softmax, mlp (the default), svm, cifarnet, resnet32, inception_v3; none: times only",
    )
    parser.add_argument("--data", metavar="PATH", help="CIFAR-10 or svmlight file of the workload")
    parser.add_argument(
        "--partition",
        metavar="HOW",
        help="own data, skewed by class: by_speed, dirichlet:alpha=0.5",
    )
    parser.add_argument(
        "--schemes",
        metavar="S,...",
        help=f"{', '.join(CONTENDERS)}; settings are given like ssp:bound=3, backup:backups=2, "
        f"lb-bsp:POLICY,predictor=ema,unweighted; default {SCHEMES}, on Ray without flexrr. "
        "sequential-bsp is BSP that processes one sample at a time, as flexrr does",
    )
    parser.add_argument(
        "--predictor", metavar="Q", help=f"of LB-BSP: {', '.join(PREDICTORS)}, like ema:alpha=0.5"
    )
    parser.add_argument(
        "--engine", default="virtual", metavar="E", help=f"{', '.join(ENGINES)}; default virtual"
    )
    parser.add_argument("--address", metavar="A", help="with ray: of a running Ray cluster")
    speeds = parser.add_mutually_exclusive_group()
    speeds.add_argument(
        "--scale",
        type=positive,
        metavar="S",
        help="with ray: workers take the times of the cluster, with S real seconds for each "
        f"virtual one; default {EMULATED_SCALE}",
    )
    speeds.add_argument(
        "--real-speeds", action="store_true", help="with ray: workers run at full speed"
    )
    parser.add_argument("--optimizer", default="sgd", metavar="O", help="sgd, momentum or adam")
    parser.add_argument("--learning-rate", type=positive, metavar="ETA", help="of BSP")
    parser.add_argument("--shards", type=count, default=1, metavar="S", help="parameter servers")
    parser.add_argument(
        "--threads",
        type=count,
        default=1,
        metavar="N",
        help="threads per gradient, in virtual time; default 1, which is fastest for small nets",
    )
    parser.add_argument(
        "--target",
        type=share,
        metavar="ACC",
        help=f"accuracy, as the mean of {SMOOTHED_OVER} evaluations in a row; without "
        f"--iterations a scheme stops when it reaches it, or after "
        f"{MOST_UPDATES} updates; default {TARGET}, with {ITERATIONS} iterations",
    )
    parser.add_argument("--iterations", type=count, metavar="K", help="updates of each scheme")
    parser.add_argument(
        "--evaluate-every", type=count, default=5, metavar="K", help="updates; default 5"
    )
    add_seeds(parser, f"{SEEDS['virtual']}, on Ray {SEEDS['ray']}")
    parser.add_argument("--json", action="store_true", help="print all figures and curves as JSON")
    parser.add_argument("--plot", metavar="FILE", help="picture, .png or .svg")


def run(args: argparse.Namespace) -> int:
    if args.plot is not None:
        # Check it now, not after a long run.
        check_format(args.plot)
    engine = _engine(args)
    seeds = seeds_of(args, SEEDS[args.engine])
    contenders = parse_scheme_specs(args.schemes or usual_schemes(args.engine))
    with busy("preparing the comparison"):
        comparison = make_comparison(args, engine)
        for contender in contenders:
            for seed in seeds:
                comparison.check(contender, seed)
        cluster = comparison.make_cluster(seeds[0])
    if args.predictor not in (None, *(comparison.setup(c, cluster).predictor for c in contenders)):
        raise InvalidSetting(
            f"--predictor goes with lb-bsp:proportional, got no such scheme for {args.predictor!r}"
        )
    with (
        interrupt_on_signals(),
        comparison.session(contenders, seeds[0]),
        displayed(comparison, contenders, len(seeds)) as display,
    ):
        figures = [_run_seed(comparison, contenders, seed, display) for seed in seeds]
    result = result_of(comparison, contenders, seeds, figures)
    if args.plot is not None:
        from evenstep.cli.compare_plot import plot_comparison

        plot_comparison(result, args.plot)
    if args.json:
        print_json(result, allow_nan=False)
        return 0
    print_result(result)
    if args.plot is not None:
        print(f"plot: {args.plot}")
    return 0


def make_comparison(args: argparse.Namespace, engine: Engine) -> Comparison:
    """Make the comparison of the arguments; the others have their defaults."""
    target, iterations = args.target, args.iterations
    workload = _workload(args)
    if workload is not None and target is None and iterations is None:
        target, iterations = TARGET, ITERATIONS
    return Comparison(
        cluster=args.cluster,
        workload=workload,
        model=parse_spec(args.workload)[0],
        engine=engine,
        num_workers=args.workers,
        total=args.total,
        noisy=not args.noise_free,
        optimizer=optimizer_spec(args.optimizer, args.learning_rate),
        predictor=args.predictor,
        partition=args.partition,
        num_shards=args.shards,
        target=target,
        iterations=iterations,
        evaluate_every=args.evaluate_every,
    )


def usual_schemes(engine: str) -> str:
    """Return the schemes to compare on an engine.

    >>> usual_schemes("ray")
    'bsp,asp,ssp,backup,lb-bsp'
    """
    return SCHEMES.replace(",flexrr", "") if engine == "ray" else SCHEMES


def _engine(args: argparse.Namespace) -> Engine:
    if args.engine not in ENGINES:
        raise InvalidSetting(f"engine must be one of {', '.join(ENGINES)}, got {args.engine!r}")
    settings: dict[str, Any] = {}
    if args.address is not None:
        settings["address"] = args.address
    if args.scale is not None or args.real_speeds:
        settings["scale"] = args.scale
    if settings and args.engine != "ray":
        raise InvalidSetting(
            f"--address, --scale and --real-speeds go with --engine ray, got {args.engine!r}"
        )
    return ENGINES[args.engine](**settings)


def optimizer_spec(spec: str, learning_rate: float | None) -> str:
    """Return the short form of an optimizer with its defaults.

    >>> optimizer_spec("momentum", 0.2)
    'sgd:momentum=0.9,learning_rate=0.2'
    """
    name, settings = parse_spec(spec)
    if name not in LEARNING_RATES:
        raise InvalidSetting(f"optimizer must be one of {', '.join(LEARNING_RATES)}, got {name!r}")
    if learning_rate is not None and "learning_rate" in settings:
        raise InvalidSetting(f"learning_rate of {name} must be given once, got {learning_rate} too")
    if name == "momentum":
        settings.setdefault("momentum", MOMENTUM)
    settings.setdefault("learning_rate", learning_rate or LEARNING_RATES[name])
    name = "sgd" if name == "momentum" else name
    return f"{name}:" + ",".join(f"{setting}={value}" for setting, value in settings.items())


def _workload(args: argparse.Namespace) -> Workload | None:
    if args.workload == NO_WORKLOAD:
        for name, usual in TRAINING.items():
            if (value := getattr(args, name)) != usual:
                option = name.replace("_", "-")
                raise InvalidSetting(f"--{option} goes with a workload, got none for {value!r}")
        return None
    # Imported here, so that a timing-only comparison needs no torch.
    from evenstep.simulator.engine.optimizers import make_optimizer
    from evenstep.simulator.engine.replica import use_threads
    from evenstep.simulator.workloads.registry import make_workload

    use_threads(args.threads)
    make_optimizer(optimizer_spec(args.optimizer, args.learning_rate))
    return make_workload(args.workload, args.data)


def _run_seed(
    comparison: Comparison, contenders: list[SchemeSpec], seed: int, display: Display
) -> dict[str, ComparisonFigures]:
    """Run every contender with one seed."""
    figures: dict[str, ComparisonFigures] = {}
    for contender in contenders:
        watch = display.watch(contender, seed)
        figures[contender.label] = comparison.run(contender, seed, watch)
        display.end(contender)
    return figures
