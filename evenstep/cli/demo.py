"""Train on unequal workers on this machine, as plain BSP and balanced.

Real distributed training with PyTorch: four processes train a small convolutional net on
scikit-learn's digits. The devices are emulated: each worker takes as long as a GPU of its kind
would (V100, M60, K80, K520; scaled down). With --throttle nothing is emulated: control groups
throttle the CPUs of the workers, which usually needs root.

examples:
  evenstep demo
  evenstep demo --throttle --out /tmp/demo
  evenstep demo --json
"""

from __future__ import annotations

import argparse
import contextlib
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from evenstep.cli.arguments import count, whole
from evenstep.cli.demo_result import DemoResult
from evenstep.cli.demo_settings import RUNS, SHARES, DemoSettings
from evenstep.cli.printing import busy, print_json
from evenstep.cli.processes import Torchrun
from evenstep.cli.stopping import interrupt_on_signals
from evenstep.cli.watch_view import Latest, iteration_time
from evenstep.cli.workers_table import workers_table
from evenstep.errors import InvalidSetting
from evenstep.runlog.follower import FileFollower
from evenstep.simulator.load.throttle import Throttles
from evenstep.simulator.workloads import NUM_TRAINING

_WORKER = "evenstep.cli.demo_worker"
_POLL = 0.1
_TITLES = {"plain": "plain BSP", "balanced": "balanced"}
_THROTTLED_WIDTH = 80
"""Width of the net: throttled workers need enough to compute."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--out", default="out", metavar="DIR", help="for all files; default out"
    )
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
    with interrupt_on_signals(), contextlib.ExitStack() as stack:
        settings = _settings(args, folder, stack)
        num_iterations = settings.epochs * (NUM_TRAINING // settings.cluster.total)
        _train(settings, stack.enter_context(DemoView(num_iterations, quiet=args.json)))
    with busy("writing the plot and the report"):
        result = DemoResult.of(settings)
        files = result.write_files()
    for path in (settings.result, settings.output):
        path.unlink()
    if args.json:
        print_json({**result.as_json(), "files": files})
    else:
        paths = (f"{name}: {path}" for name, path in files.items())
        print("\n".join(["", *result.lines(), *paths]))
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
    return replace(settings, throttled=throttles.groups, width=_THROTTLED_WIDTH)


def _train(settings: DemoSettings, view: DemoView) -> None:
    """Start the workers, and show their run logs until they end."""
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
    """Show one run until its log has the end event."""
    latest = Latest()
    while not latest.ended:
        # Checked before the log is read: the log of an ended process is complete.
        running = workers.is_running()
        for record in follower.poll():
            latest.take(record)
        view.show(title, latest)
        if not running:
            break
        time.sleep(_POLL)
    view.end(title, latest)


class DemoView:
    """Shows one run after the other; each leaves its last state on the screen."""

    def __init__(self, num_iterations: int, quiet: bool) -> None:
        self._num_iterations = num_iterations
        self._quiet = quiet
        self._console = Console()
        self._live: Live | None = None
        self._printed = 0
        self._until_shown = contextlib.ExitStack()
        """Explains the wait for the first iteration; with `quiet`, for the last."""
        if self._console.is_terminal and not quiet:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)

    def say(self, text: str) -> None:
        """Print a line above the table."""
        if not self._quiet:
            self._console.print(Text(text), soft_wrap=True)

    def show(self, name: str, latest: Latest) -> None:
        """Show the newest state of a run."""
        if latest.row is None or self._quiet:
            return
        self._until_shown.close()
        if self._live is not None:
            self._live.start()
            self._live.update(self._table(name, latest))
        elif latest.iteration + 1 >= self._printed + max(1, self._num_iterations // 5):
            self._printed = latest.iteration + 1
            self.say(_line(name, latest, self._num_iterations))

    def end(self, name: str, latest: Latest) -> None:
        """Leave the last state of a run on the screen."""
        self._printed = 0
        if self._live is not None and latest.row is not None:
            self._console.print(self._table(name, latest))
            self._live.update(Text())

    def __enter__(self) -> DemoView:
        what = "training, plain and balanced" if self._quiet else "the workers import torch"
        self._until_shown.enter_context(busy(what))
        return self

    def __exit__(self, *error: object) -> None:
        self._until_shown.close()
        if self._live is not None:
            self._live.update(Text())
            self._live.stop()

    def _table(self, name: str, latest: Latest) -> RenderableType:
        assert latest.row is not None and latest.header is not None
        row = latest.row
        time = iteration_time(row)
        title = (
            f"{name} ({latest.header.source}): iteration {latest.iteration + 1}/"
            f"{self._num_iterations}, {1e3 * time:.0f} ms, waiting {latest.waiting_share:.0%}"
        )
        return workers_table(title, latest.workers, row.batch_sizes, row.times, time)


def _line(name: str, latest: Latest, num_iterations: int) -> str:
    assert latest.row is not None
    row = latest.row
    sizes = "/".join(map(str, row.batch_sizes.tolist()))
    times = "/".join(f"{1e3 * time:.0f}" for time in row.times.tolist())
    return (
        f"{name}: iteration {latest.iteration + 1}/{num_iterations}, batch sizes {sizes}, "
        f"times {times} ms, waiting {latest.waiting_share:.0%}"
    )
