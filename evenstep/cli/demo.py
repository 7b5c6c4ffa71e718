"""Train on unequal workers on this machine, as plain BSP and balanced.

Real distributed training with PyTorch: four processes train a small convolutional net on
scikit-learn's digits. The devices are emulated: each worker takes as long as a GPU of its kind
would (V100, M60, K80, K520; scaled down). With --throttle nothing is emulated: the CPUs of the
workers are really throttled by control groups, which usually takes root.

examples:
  evenstep demo
  evenstep demo --throttle --out /tmp/demo
  evenstep demo --json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from evenstep.cli.arguments import count, whole
from evenstep.cli.demo_result import DemoResult
from evenstep.cli.demo_settings import RUNS, SHARES, DemoSettings
from evenstep.cli.demo_view import DemoView
from evenstep.cli.processes import Torchrun
from evenstep.cli.stopping import told_to_stop
from evenstep.cli.watched import Latest
from evenstep.errors import InvalidSetting
from evenstep.measure.throttle import Throttles
from evenstep.runlog.follower import FileFollower
from evenstep.workloads import NUM_TRAINING

_WORKER = "evenstep.cli.demo_worker"
_POLL = 0.1
_TITLES = {"plain": "plain BSP", "balanced": "balanced"}
_THROTTLED_WIDTH = 80
"""Of the net: throttled workers need something to compute."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="out", metavar="DIR", help="for all files; default out")
    parser.add_argument(
        "--throttle", action="store_true", help="really throttle CPUs instead of emulating devices"
    )
    parser.add_argument("--workers", type=count, default=4, metavar="N", help="default 4")
    parser.add_argument("--epochs", type=count, default=4, metavar="E", help="default 4")
    parser.add_argument("--seed", type=whole, default=0, metavar="S", help="default 0")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON only")


def run(args: argparse.Namespace) -> int:
    for package in ("torch", "sklearn", "matplotlib"):
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    with told_to_stop(), contextlib.ExitStack() as stack:
        settings = _settings(args, folder, stack)
        _train(settings, stack.enter_context(_view(settings, quiet=args.json)))
    result = DemoResult.of(settings)
    files = result.write_files()
    for path in (settings.result, settings.output):
        path.unlink()
    if args.json:
        json.dump({**result.as_json(), "files": files}, sys.stdout, indent=2)
        print()
    else:
        print(
            "\n".join(["", *result.lines(), *(f"{what}: {path}" for what, path in files.items())])
        )
    return 0


def _settings(args: argparse.Namespace, folder: Path, stack: contextlib.ExitStack) -> DemoSettings:
    settings = DemoSettings(str(folder), args.workers, args.epochs, args.seed)
    if args.workers < 2:
        raise InvalidSetting(f"--workers must be >= 2 to have somebody unequal, got {args.workers}")
    if settings.cluster.total > NUM_TRAINING:
        raise InvalidSetting(
            f"--workers must leave 32 of {NUM_TRAINING} samples for each, got {args.workers}"
        )
    if not args.throttle:
        return settings
    if args.workers > len(SHARES):
        raise InvalidSetting(
            f"--workers must be <= {len(SHARES)} with --throttle, got {args.workers}"
        )
    throttles = stack.enter_context(Throttles(SHARES[: args.workers]))
    return DemoSettings(
        str(folder), args.workers, args.epochs, args.seed, throttles.groups, _THROTTLED_WIDTH
    )


def _view(settings: DemoSettings, quiet: bool) -> DemoView:
    per_epoch = NUM_TRAINING // settings.cluster.total
    return DemoView(settings.epochs * per_epoch, quiet)


def _train(settings: DemoSettings, view: DemoView) -> None:
    """Start the workers, and show what their run logs say until they are through."""
    for run in RUNS:
        settings.log(run).unlink(missing_ok=True)
    how = "with throttled CPUs" if settings.throttled else "with emulated device speeds"
    view.say(f"starting {settings.num_workers} workers {how} (torchrun, gloo) ...")
    with Torchrun(settings.num_workers, _WORKER, [settings.to_json()], settings.output) as workers:
        for run, title in _TITLES.items():
            _follow(FileFollower(settings.log(run)), title, workers, view)
        while workers.is_running():
            time.sleep(_POLL)


def _follow(follower: FileFollower, title: str, workers: Torchrun, view: DemoView) -> None:
    """Show one run until its log says that it has ended."""
    latest = Latest()
    while not latest.ended:
        # Asked before the log is read: what an ended process has written is all there.
        running = workers.is_running()
        for record in follower.poll():
            latest.take(record)
        view.show(title, latest)
        if not running:
            break
        time.sleep(_POLL)
    view.end(title, latest)
