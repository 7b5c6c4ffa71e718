"""Look whether balanced training works here, and say what to do where it does not.

Shows what is installed, process-group backends, devices, cores and limits, clocks, whether CPUs
can be throttled and network namespaces made, and trains for a moment in two processes. Exit code
1 where balanced training cannot work.

examples:
  evenstep doctor
  evenstep doctor --json --timeout 120
"""

from __future__ import annotations

import argparse
import json
import sys

from evenstep.cli.arguments import positive
from evenstep.cli.doctor_checks import MARKS, Finding, look_at_machine, look_at_packages
from evenstep.cli.doctor_training import look_at_training


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", type=positive, default=90.0, metavar="S", help="of each trial, in seconds; 90"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    findings: list[Finding] = []
    for look in (
        look_at_packages,
        look_at_machine,
        lambda: look_at_training(args.timeout),
    ):
        for finding in look():
            findings.append(finding)
            if not args.json:
                print("\n".join(_lines(finding)), flush=True)
    works = not any(finding.state == "broken" for finding in findings)
    if args.json:
        data = {"works": works, "findings": [finding.as_json() for finding in findings]}
        json.dump(data, sys.stdout, indent=2)
        print()
    else:
        print(f"Balanced training {'works' if works else 'does not work'} here.")
    return 0 if works else 1


def _lines(finding: Finding) -> list[str]:
    lines = [f"{MARKS[finding.state]} {finding.subject}: {finding.text}"]
    if finding.remedy:
        lines.append(f"     -> {finding.remedy}")
    return lines
