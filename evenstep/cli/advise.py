"""Say what balancing would gain, before using it.

Reads a run log, best one recorded with mode="observe"; or a cluster, as `evenstep simulate` takes
it; or batch processing times from elsewhere: a CSV of worker,iteration,batch_size,seconds, traces
of the PyTorch profiler (one per worker), or a log of NVIDIA's straggler detection.

examples:
  evenstep advise run.jsonl
  evenstep advise --cluster A:4 --workers-out 1
  evenstep advise --times times.csv --json
  evenstep advise --times trace-*.json --batch-size 32
"""

from __future__ import annotations

import argparse
import json
import sys

from evenstep import runlog
from evenstep.advice import (
    Advice,
    Case,
    Observations,
    advise,
    case_of_cluster,
    observations_of,
    read_times,
)
from evenstep.advice.advising import ROWS
from evenstep.advice.words import lines_to_change, sentences
from evenstep.cli.arguments import count, whole
from evenstep.clusters.named import SUMMARIES, make_cluster
from evenstep.errors import InvalidSetting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", nargs="?", metavar="RUNLOG", help="a run log, docs/run_log.md")
    parser.add_argument(
        "--cluster", metavar="C", help=f"a cluster file, or one of {', '.join(SUMMARIES)}"
    )
    parser.add_argument(
        "--times", nargs="+", metavar="FILE", help="times from elsewhere, docs/advise.md"
    )
    parser.add_argument(
        "--batch-size",
        type=_sizes,
        metavar="X[,X...]",
        help="with --times: of all workers, or of each, where the files do not say it",
    )
    parser.add_argument(
        "--workers-out", type=whole, default=0, metavar="K", help="say which K workers to drop"
    )
    parser.add_argument("--seed", type=whole, default=0, metavar="S", help="of the ranges; 0")
    parser.add_argument("--json", action="store_true", help="print the advice as JSON")


def run(args: argparse.Namespace) -> int:
    advice = advise(_subject(args), args.workers_out, args.seed)
    if args.json:
        json.dump(advice.as_json(), sys.stdout, indent=2)
        print()
        return 0
    _print(advice)
    return 0


def _subject(args: argparse.Namespace) -> Case | Observations:
    given = [what for what in (args.log, args.cluster, args.times) if what is not None]
    if len(given) != 1:
        raise InvalidSetting(
            f"give one of RUNLOG, --cluster and --times, got {len(given) or 'none'} of them"
        )
    if args.batch_size is not None and args.times is None:
        raise InvalidSetting("--batch-size goes with --times; others say their batch sizes")
    if args.times is not None:
        return read_times(args.times, args.batch_size)
    if args.cluster is not None:
        return case_of_cluster(make_cluster(args.cluster, seed=args.seed), ROWS)
    return observations_of(runlog.read(args.log))


def _print(advice: Advice) -> None:
    from evenstep.cli.advise_view import print_tables

    print("\n".join(sentences(advice)))
    print_tables(advice)
    print("To balance a DistributedDataParallel script, change three lines:")
    print(lines_to_change(advice.total))


def _sizes(text: str) -> list[int]:
    return [count(part) for part in text.split(",")]
