"""Re-make the experiments of the paper's evaluation, and show its figures next to ours.

Every experiment says which of its figures are measured on this machine, are of virtual time or are
emulated, and why they differ from the paper's. With --quick all of them run on bundled data, in a
few minutes; the full run takes hours. Finished work is kept in the folder, and an interrupted run
continues from there. The results are one page, index.html, and its tables and claims as results.md;
see reproduction/README.md.

examples:
  python -m reproduction --list
  python -m reproduction --quick
  python -m reproduction micro predictors --out results
  python -m reproduction all --data DIR
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from evenstep.cli.main import exit_code_of
from evenstep.cli.stopping import interrupt_on_signals
from evenstep.core.archive import replace_file
from reproduction import EXTRAS
from reproduction.data import Data
from reproduction.data_check import check_data
from reproduction.experiment import Settings
from reproduction.markdown import markdown
from reproduction.page import page
from reproduction.run import chosen, draw_missing, finished, forget, kept_records
from reproduction.run import run as run_experiment
from reproduction.terminal import displayed, print_list, print_record

DEFAULT_OUT, DEFAULT_QUICK_OUT = Path("out/reproduce"), Path("out/reproduce-quick")
"""Two, so that a quick run does not overwrite the results of hours."""
PAGE, MARKDOWN = "index.html", "results.md"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; ``argv`` is that of the process by default."""
    return exit_code_of(lambda: run(_parser().parse_args(argv)), "reproduction", EXTRAS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments; default all")
    parser.add_argument("--list", action="store_true", help="list the experiments, and run none")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of the full data (reproduction/README.md)"
    )
    parser.add_argument("--quick", action="store_true", help="small data, few seeds: minutes")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="DIR",
        help=f"where results are kept; default {DEFAULT_OUT}, with --quick {DEFAULT_QUICK_OUT}",
    )
    parser.add_argument("--again", action="store_true", help="make finished experiments again, too")
    parser.add_argument("--json", action="store_true", help="print all results as JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    experiments = chosen(args.names)
    if args.list:
        print_list(experiments, as_json=args.json)
        return 0
    settings = Settings(args.quick, Data(args.data))
    out: Path = args.out or (DEFAULT_QUICK_OUT if args.quick else DEFAULT_OUT)
    out.mkdir(parents=True, exist_ok=True)
    # Hours of work must not end at a damaged record or at data that are something else.
    list(kept_records(out))
    check_data([e for e in experiments if args.again or not finished(e, settings, out)], settings)
    if args.again:
        forget(experiments, settings, out)
    records = []
    with interrupt_on_signals(), displayed(len(experiments), quiet=args.json) as display:
        for experiment in experiments:
            progress = display.begin(experiment.name)
            was_finished = finished(experiment, settings, out) is not None
            record = run_experiment(experiment, settings, out, progress)
            # After each, so that there is a page when the next one is interrupted.
            _show(out)
            records.append(record)
            display.end(record, was_finished)
    if args.json:
        json.dump([record.as_json() for record in records], sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        for record in records:
            print_record(record)
        print(f"page: {out / PAGE}")
    return 1 if any(record.result.failed for record in records) else 0


def _show(out: Path) -> None:
    """Write the page and the Markdown of all records in a folder."""
    kept = list(kept_records(out))
    for record in kept:
        draw_missing(record, out)
    replace_file(out / PAGE, page(kept, out).encode())
    replace_file(out / MARKDOWN, markdown(kept).encode())
