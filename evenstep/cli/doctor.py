"""Check that balanced training works on this machine, and suggest a remedy for each problem.

Checks installed packages, process-group backends, devices, cores and limits, clocks, CPU throttling
and network namespaces, and trains briefly in two processes. The exit code is 1 if balanced training
cannot work.

examples:
  evenstep doctor
  evenstep doctor --json --timeout 120
"""

from __future__ import annotations

import argparse
from itertools import chain

from evenstep.cli.arguments import positive
from evenstep.cli.doctor_checks import MARKS, Finding, check_machine, check_packages
from evenstep.cli.doctor_training import check_training
from evenstep.cli.printing import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", type=positive, default=90.0, metavar="S", help="of each trial, in seconds; 90"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    findings: list[Finding] = []
    for finding in chain(check_packages(), check_machine(), check_training(args.timeout)):
        findings.append(finding)
        if not args.json:
            print("\n".join(_lines(finding)), flush=True)
    works = not any(finding.state == "broken" for finding in findings)
    if args.json:
        print_json({"works": works, "findings": [finding.as_json() for finding in findings]})
    else:
        print(f"Balanced training {'works' if works else 'does not work'} here.")
    return 0 if works else 1


def _lines(finding: Finding) -> list[str]:
    lines = [f"{MARKS[finding.state]} {finding.subject}: {finding.text}"]
    if finding.remedy:
        lines.append(f"     -> {finding.remedy}")
    return lines
