"""Estimate the gain of balancing before using it.

Reads a run log, preferably recorded with mode="observe"; or a cluster, as for `evenstep simulate`;
or batch processing times from other tools: a CSV of worker,iteration,batch_size,seconds, traces of
the PyTorch profiler (one per worker), or a log of NVIDIA's straggler detection.

examples:
  evenstep advise run.jsonl
  evenstep advise A:4 --workers-out 1
  evenstep advise --times times.csv --json
  evenstep advise --times trace-*.json --batch-sizes 32
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from evenstep import runlog
from evenstep.cli.arguments import count, whole
from evenstep.cli.printing import busy, print_json, say
from evenstep.cli.workers_table import console
from evenstep.errors import InvalidSetting
from evenstep.insight.advice import (
    Advice,
    Case,
    Observations,
    advise,
    case_of_cluster,
    observations_of,
    read_times,
)
from evenstep.insight.advice.advising import ROWS
from evenstep.insight.advice.words import lines_to_change, sentences, time_of
from evenstep.insight.plots.plot_data import readable
from evenstep.simulator.clusters.registry import SUMMARIES, is_cluster, make_cluster


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject",
        nargs="?",
        metavar="RUNLOG|CLUSTER",
        help=f"a run log, docs/run_log.md; or one of {', '.join(SUMMARIES)}, or a cluster file",
    )
    parser.add_argument(
        "--times", nargs="+", metavar="FILE", help="times from other tools, docs/advise.md"
    )
    parser.add_argument(
        "--batch-sizes",
        type=_sizes,
        metavar="X,...",
        help="with --times: of all workers, or of each, if the files do not have it",
    )
    parser.add_argument(
        "--workers-out", type=whole, default=0, metavar="K", help="choose K workers to remove"
    )
    parser.add_argument("--seed", type=whole, default=0, metavar="S", help="of the ranges; 0")
    parser.add_argument("--json", action="store_true", help="print the advice as JSON")


def run(args: argparse.Namespace) -> int:
    with busy("estimating the gain of balancing"):
        advice = advise(_subject(args), args.workers_out, args.seed)
    if args.json:
        print_json(advice.as_json())
    else:
        _print(advice)
    return 0


def _subject(args: argparse.Namespace) -> Case | Observations:
    if (args.subject is None) == (args.times is None):
        got = "neither" if args.times is None else "both"
        raise InvalidSetting(f"give either RUNLOG|CLUSTER or --times FILE, got {got}")
    if args.batch_sizes is not None and args.times is None:
        raise InvalidSetting("--batch-sizes goes with --times; others say their batch sizes")
    if args.times is not None:
        return read_times(args.times, args.batch_sizes)
    if is_cluster(args.subject):
        return case_of_cluster(make_cluster(args.subject, seed=args.seed), ROWS)
    if not Path(args.subject).exists():
        raise InvalidSetting(
            f"give a run log, a cluster file, or one of {', '.join(SUMMARIES)}, "
            f"got {args.subject!r}, which is none of them"
        )
    return observations_of(runlog.read(args.subject))


def _print(advice: Advice) -> None:
    say(sentences(advice))
    console().print(_workers(advice))
    console().print(_totals(advice))
    print("To balance a DistributedDataParallel script, change three lines:")
    print(lines_to_change(advice.total))


def _sizes(text: str) -> list[int]:
    return [count(part) for part in text.split(",")]


_SHOWN = 40
"""Most workers in the table: of more, the slowest ones."""


def _workers(advice: Advice) -> Table:
    source = "" if advice.source == "measured" else f" ({advice.source})"
    table = Table(title=Text(f"optimum batch sizes{source}"), title_justify="left")
    table.add_column("worker")
    for column in ("plain size", "time", "optimum size", "time", "overhead", "job without it"):
        table.add_column(column, justify="right")
    shown = np.sort(np.argsort(advice.speeds, kind="stable")[:_SHOWN])
    for i in shown.tolist():
        table.add_row(
            Text(readable(advice.workers[i], 40)),
            str(advice.plain_sizes[i]),
            time_of(advice, advice.plain_times[i]),
            str(advice.batch_sizes[i]),
            time_of(advice, advice.times[i]),
            _overhead(advice, i),
            _without(advice, i),
        )
    left_out = len(advice.workers) - len(shown)
    table.caption = "mean times of the workers; with noise, an iteration takes longer than each"
    if left_out:
        table.caption += f"; and {left_out} faster workers"
    return table


def _overhead(advice: Advice, worker: int) -> str:
    if advice.overheads is None or advice.identified is None:
        return "-"
    if not advice.identified[worker]:
        return "unknown"
    return time_of(advice, advice.overheads[worker])


def _without(advice: Advice, worker: int) -> str:
    time = advice.times_without[worker]
    return "-" if math.isnan(time) else f"{time / advice.balanced.value - 1:+.1%}"


def _totals(advice: Advice) -> Table:
    table = Table(title="total batches, balanced", title_justify="left")
    table.add_column("total", justify="right")
    table.add_column("iteration", justify="right")
    table.add_column("samples" if advice.relative else "samples/s", justify="right")
    for total in advice.totals:
        now = " (now)" if total.total == advice.total else ""
        speed = f"{total.speed:.4g}"
        table.add_row(f"{total.total}{now}", time_of(advice, total.iteration_time), speed)
    return table
