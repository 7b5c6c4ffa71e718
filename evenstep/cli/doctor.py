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
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from evenstep.cli.arguments import positive
from evenstep.cli.doctor_checks import MARKS, Finding, check_machine, check_packages
from evenstep.cli.printing import print_json, say
from evenstep.errors import EvenstepError

_POLL = 0.1
_LARGEST_DIFFERENCE = 1e-4
"""Largest difference of parameters after plain and balanced training on the same samples."""


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
            say(_lines(finding), hanging=5)
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


def check_training(timeout: float) -> Iterator[Finding]:
    """Yield the findings on backends, devices, and a short training in two processes."""
    if find_spec("torch") is None or find_spec("psutil") is None:
        yield Finding(
            "training", "broken", "not tried: it takes torch and psutil",
            "pip install 'evenstep[torch]'",
        )  # fmt: skip
        return
    yield from _torch(timeout)
    yield _trial(timeout)


def _torch(timeout: float) -> Iterator[Finding]:
    """Query torch in a process of its own, as it may crash with a wrong driver."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "evenstep.pytorch.diagnostics"],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout,
        )  # fmt: skip
        facts = json.loads(done.stdout.splitlines()[-1]) if done.stdout else None
    except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
        yield Finding("torch", "broken", f"does not load: {problem}", "install it again")
        return
    if done.returncode or not isinstance(facts, dict):
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
        yield Finding("torch", "broken", f"does not load: {lines[-1]}", "install it again")
        return
    yield _backends(facts)
    yield _devices(facts)


def _backends(facts: dict[str, Any]) -> Finding:
    names = [name for name, there in facts["backends"].items() if there]
    if not names:
        return Finding(
            "process groups", "broken", "torch was built without torch.distributed",
            "install a build of torch that has it",
        )  # fmt: skip
    return Finding("process groups", "ok", ", ".join(names))


def _devices(facts: dict[str, Any]) -> Finding:
    devices = [f"{device['name']} ({device['gib']:.0f} GiB)" for device in facts["devices"]]
    if not devices:
        reason = facts["cuda"] or "torch is a build for CPUs"
        return Finding("GPUs", "ok", f"none; {reason}")
    if not facts["backends"].get("nccl"):
        remedy = "install a build of torch with NCCL: gloo moves gradients through the host"
        return Finding("GPUs", "lacking", f"{', '.join(devices)}, without nccl", remedy)
    return Finding("GPUs", "ok", ", ".join(devices))


def _trial(timeout: float) -> Finding:
    from evenstep.cli.processes import Torchrun

    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="evenstep-") as folder:
        result, output = Path(folder, "result.json"), Path(folder, "output.txt")
        try:
            with Torchrun(2, "evenstep.pytorch.diagnostics", [str(result)], output) as workers:
                while workers.is_running():
                    if time.monotonic() > started + timeout:
                        raise EvenstepError(f"two processes did not end within {timeout:g} s")
                    time.sleep(_POLL)
            outcome = json.loads(result.read_text())
        except (EvenstepError, OSError, ValueError) as problem:
            text = output.read_text(errors="replace").strip() if output.exists() else ""
            last = text.splitlines()[-1:] or ["no output"]
            return Finding(
                "training", "broken", f"{problem}; last line: {last[0]}",
                "look at what torchrun says: python -m torch.distributed.run --standalone "
                "--nproc-per-node 2 -m evenstep.pytorch.diagnostics result.json",
            )  # fmt: skip
    return _judged(outcome, time.monotonic() - started)


def _judged(outcome: dict[str, Any], took: float) -> Finding:
    sizes, difference = outcome["batch_sizes"], outcome["largest_difference"]
    text = (
        f"two processes trained in {took:.0f} s over loopback, the second slowed down: batch sizes "
        f"{sizes[0]}/{sizes[1]}, parameters {difference:.1g} from those of plain BSP"
    )
    if sum(sizes) != outcome["total"] or not difference < _LARGEST_DIFFERENCE:
        return Finding(
            "training", "broken", f"{text}, total {outcome['total']}",
            "balancing changes what is trained here: please report this, with this output",
        )  # fmt: skip
    if sizes[0] <= sizes[1]:
        remedy = "the machine may be too busy to measure anything: try again when it is not"
        return Finding("training", "lacking", f"{text}; the slow one was not relieved", remedy)
    return Finding("training", "ok", text)
