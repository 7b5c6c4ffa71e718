"""Starts a script in all workers of this machine with torchrun, as `evenstep run` does."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import record

from evenstep.errors import InvalidSetting
from evenstep.run.options import add_options, settings_of
from evenstep.run.script import main as run_here


class Command(NamedTuple):
    """The arguments of `evenstep run`, divided by whom they are for."""

    launcher: list[str]
    """Those of torchrun."""
    ours: list[str]
    script: list[str]
    """The script and its arguments; after -m, if it is a module."""


def divide(argv: Sequence[str]) -> Command:
    """Divide arguments into those of torchrun, ours, and the script with its own.

    >>> divide(["--nproc-per-node", "2", "--policy", "even", "train.py", "--policy", "x"])
    Command(launcher=['--nproc-per-node', '2'], ours=['--policy', 'even'],
            script=['train.py', '--policy', 'x'])
    """
    everything = _launcher_parser()
    add_options(everything)
    args = everything.parse_args(argv)
    if args.no_python or args.run_path:
        raise InvalidSetting("evenstep run takes a script or -m MODULE, got --no-python/--run-path")
    script = list(argv[len(argv) - 1 - len(args.training_script_args) :])
    before = argv[: len(argv) - len(script)]
    ours = argparse.ArgumentParser(allow_abbrev=False)
    add_options(ours)
    given, launcher = ours.parse_known_args(before)
    # Mistakes end here, before there are workers.
    settings_of(given)
    if args.module:
        launcher = [word for word in launcher if word not in ("-m", "--module")]
        script = ["-m", *script]
    return Command(launcher, _words(given), script)


def launch(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run a script in workers that torchrun starts, or in this worker if it is one already."""
    command = divide(argv)
    environment = os.environ if environment is None else environment
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        words = [*command.launcher, "-m", "evenstep.run", *command.ours, *command.script]
        record(torchrun.run)(_launcher_parser().parse_args(words))
        return 0
    if command.launcher:
        raise InvalidSetting(
            "options of torchrun must be left out where it has started this worker already, got "
            f"{' '.join(command.launcher)}"
        )
    return run_here([*command.ours, *command.script])


def _launcher_parser() -> argparse.ArgumentParser:
    """Return torchrun's parser, which takes no option of a script for an abbreviation."""
    parser = torchrun.get_args_parser()
    parser.prog = "evenstep run"
    parser.allow_abbrev = False
    return parser


def _words(given: argparse.Namespace) -> list[str]:
    """Return the arguments that these options were read from."""
    words: list[str] = []
    for name, value in vars(given).items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value not in (None, False):
            words += [option, value]
    return words
