"""Make the report of a run: a self-contained HTML page, and a summary in a few sentences.

Reads the run log of a real or simulated run, even if it is still growing or cut off.

examples:
  evenstep report run.jsonl
  evenstep report run.jsonl -o report.html --plain without-balancing.jsonl
  evenstep report run.jsonl --plot run.png --json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from evenstep import runlog
from evenstep.cli.printing import busy, print_json, say
from evenstep.errors import InvalidSetting
from evenstep.insight.plots.drawing import check_format
from evenstep.insight.plots.plot import plot
from evenstep.insight.report.figures import figures_of, look_back
from evenstep.insight.report.page import answer_of, page, series_of
from evenstep.insight.report.words import SOURCE_MEANS, sentences

_BUDGET = 40 * 2**20
"""Bytes of a run log that are read: more would give the same pictures, only later."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="RUNLOG", help="a run log, docs/run_log.md")
    parser.add_argument(
        "-o", "--out", metavar="FILE.html", help="default: next to the run log, as .html"
    )
    parser.add_argument(
        "--plain", metavar="RUNLOG", help="run log of the same job without balancing, to compare"
    )
    parser.add_argument(
        "--whole", action="store_true", help="read every iteration, also of very long logs"
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="also save the picture of the run, .png or .svg"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the figures as JSON; a page only with -o"
    )


def run(args: argparse.Namespace) -> int:
    if args.plot is not None:
        check_format(args.plot)
    budget = None if args.whole else _BUDGET
    with busy(f"making the report of {args.log}"):
        run_log = runlog.read(args.log, budget)
        output = _output(args)
        plain = runlog.read(args.plain, budget) if args.plain else None
        back = look_back(run_log)
        figures = figures_of(run_log, plain, estimates=back.estimates)
        if output is not None:
            output.write_text(page(figures, run_log, plain, back), encoding="utf-8")
        if args.plot is not None:
            series = series_of(figures, run_log, plain, back)
            plot(run_log, args.plot, series, answer_of(figures))
    if args.json:
        print_json(figures.as_json())
        return 0
    say([SOURCE_MEANS[figures.source], *sentences(figures)])
    print(f"report: {output}")
    if args.plot is not None:
        print(f"plot: {args.plot}")
    return 0


def _output(args: argparse.Namespace) -> Path | None:
    """Return the path of the page; never that of a run log."""
    if args.out is None and args.json:
        return None
    output = Path(args.out) if args.out else Path(args.log).with_suffix(".html")
    for log in filter(None, (args.log, args.plain)):
        if output.resolve() == Path(log).resolve():
            raise InvalidSetting(f"the report must not replace the run log, got {str(output)!r}")
    return output
