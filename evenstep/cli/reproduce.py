"""Re-make the experiments of the paper's evaluation, with its figures beside ours.

Every experiment says what of it is measured on this machine, runs in virtual time or is emulated,
and why it differs from the paper. With --quick all of them run on data that come along, in some
minutes; otherwise they take their time. What is finished is kept in the folder: a run that was
interrupted goes on where it was. At the end there is one page, index.html, and its tables and
claims as results.md; docs/reproduce.md.

examples:
  evenstep reproduce --list
  evenstep reproduce --quick
  evenstep reproduce micro predictors --out results
  evenstep reproduce all --data DIR
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from evenstep.cli.reproduce_view import displayed, print_list, print_record
from evenstep.cli.stopping import told_to_stop
from evenstep.core.archive import replace_file
from evenstep.reproduce.data import Data
from evenstep.reproduce.experiment import Settings
from evenstep.reproduce.markdown import markdown
from evenstep.reproduce.opening import open_data
from evenstep.reproduce.page import page
from evenstep.reproduce.run import chosen, draw_missing, finished, forget, kept_records
from evenstep.reproduce.run import run as run_experiment

DEFAULT_OUT, DEFAULT_QUICK_OUT = Path("out/reproduce"), Path("out/reproduce-quick")
"""Two, so that a quick run does not overwrite what took hours."""
PAGE, MARKDOWN = "index.html", "results.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments; default all")
    parser.add_argument("--list", action="store_true", help="list the experiments, and run none")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of the full data (docs/reproduce.md)"
    )
    parser.add_argument("--quick", action="store_true", help="small data, few seeds: minutes")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"where results are kept; default {DEFAULT_OUT}, with --quick {DEFAULT_QUICK_OUT}",
    )
    parser.add_argument("--again", action="store_true", help="make finished experiments anew, too")
    parser.add_argument("--json", action="store_true", help="print all results as JSON")


def run(args: argparse.Namespace) -> int:
    experiments = chosen(args.names)
    if args.list:
        print_list(experiments, as_json=args.json)
        return 0
    settings = Settings(args.quick, Data(args.data))
    out: Path = args.out or (DEFAULT_QUICK_OUT if args.quick else DEFAULT_OUT)
    out.mkdir(parents=True, exist_ok=True)
    # A damaged record is better found before hours of work than behind them; so are foreign data.
    list(kept_records(out))
    open_data([e for e in experiments if args.again or not finished(e, settings, out)], settings)
    if args.again:
        forget(experiments, settings, out)
    records = []
    with told_to_stop(), displayed(len(experiments), quiet=args.json) as display:
        for experiment in experiments:
            progress = display.begin(experiment.name)
            was_finished = finished(experiment, settings, out) is not None
            record = run_experiment(experiment, settings, out, progress)
            # After each, so that whoever interrupts the next one has a page all the same.
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
    """Write the page and the Markdown of all that a folder has."""
    kept = list(kept_records(out))
    for record in kept:
        draw_missing(record, out)
    replace_file(out / PAGE, page(kept, out).encode())
    replace_file(out / MARKDOWN, markdown(kept).encode())
