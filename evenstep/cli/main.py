"""The ``evenstep`` command: finds the requested command, imports only that one, and runs it.

A command is a module with a docstring, which ``--help`` shows, and two functions:

    add_arguments(parser)     adds its arguments
    run(args) -> int          runs it, and returns the exit code

A command that passes arguments on to another program also has `parse(parser, argv) -> args`.

Exit codes: 0 success, 1 a check failed, 2 the user's mistake (one line, no traceback), 130
interrupted with Ctrl-C, 141 the reader of the output closed the pipe. Anything else is a bug and
shows its traceback.
"""

from __future__ import annotations

import argparse
import inspect
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple, Protocol, cast

from evenstep import __version__
from evenstep.errors import EvenstepError


class Entry(NamedTuple):
    """The module and the summary of a command, known without importing it."""

    module: str
    summary: str


COMMANDS: dict[str, Entry] = {
    "advise": Entry("evenstep.cli.advise", "estimate the gain of balancing before using it"),
    "compare": Entry("evenstep.cli.compare", "train under several schemes, and compare them"),
    "dashboard": Entry("evenstep.cli.dashboard", "show running jobs in a browser"),
    "demo": Entry("evenstep.cli.demo", "train on unequal workers here, plain and balanced"),
    "doctor": Entry("evenstep.cli.doctor", "check that balanced training works on this machine"),
    "load": Entry("evenstep.cli.load", "replay a trace as real load on this machine"),
    "manager": Entry("evenstep.cli.manager", "run the service that balances many jobs"),
    "partition": Entry("evenstep.cli.partition", "make, show, check and migrate partitions"),
    "report": Entry("evenstep.cli.report", "make the report of a run, as an HTML page"),
    "run": Entry("evenstep.cli.run", "balance an unmodified PyTorch script, started by torchrun"),
    "simulate": Entry("evenstep.cli.simulate", "show the effect of balancing in virtual time"),
    "watch": Entry("evenstep.cli.watch", "watch a running job in the terminal"),
}

MOVED: dict[str, str] = {
    "reproduce": "the paper's experiments are run from a checkout of Evenstep's repository: "
    "python -m reproduction ..."
}
"""Commands of former versions, and their replacements."""

EXTRAS: dict[str, str] = {
    "h11": "manager",
    "matplotlib": "plots",
    "prometheus_client": "manager",
    "psutil": "torch",
    "rich": "sim",
    "simpy": "sim",
    "sklearn": "demo",
    "starlette": "dashboard",
    "statsmodels": "arima",
    "thriftpy2": "manager",
    "tomli": "sim",
    "torch": "torch",
    "uvicorn": "dashboard",
}
"""The extra that brings each package that the core does not need."""


class Command(Protocol):
    """The interface of a command's module."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Add the arguments of the command."""

    def run(self, args: argparse.Namespace, /) -> int:
        """Run the command and return its exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``argv`` defaults to that of the process."""
    return exit_code_of(lambda: _run(sys.argv[1:] if argv is None else argv))


def exit_code_of(action: Callable[[], int], program: str = "evenstep") -> int:
    """Return the exit code of an action; a user's mistake prints one line, with the program."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that lacks a character gets a question mark, not a traceback.
        sys.stdout.reconfigure(errors="replace")
    try:
        try:
            return action()
        finally:
            sys.stdout.flush()
    except EvenstepError as error:
        return _fail(str(error), program)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        text = f"{package} is not installed; pip install 'evenstep[{EXTRAS[package]}]'"
        return _fail(text, program)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.filename is None:
            raise
        return _fail(f"{error.filename}: {error.strerror}", program)


def _run(argv: Sequence[str]) -> int:
    parser = _parser()
    chosen = parser.parse_args(argv)
    if chosen.command in MOVED:
        return _fail(MOVED[chosen.command])
    if chosen.command not in COMMANDS:
        got = "none" if chosen.command is None else repr(chosen.command)
        parser.error(f"the command must be one of {', '.join(COMMANDS)}, got {got}")
    module = import_module(COMMANDS[chosen.command].module)
    command = cast(Command, module)
    command_parser = argparse.ArgumentParser(
        prog=f"evenstep {chosen.command}",
        description=inspect.getdoc(module),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(command_parser)
    parse = getattr(module, "parse", argparse.ArgumentParser.parse_args)
    return command.run(parse(command_parser, chosen.arguments))


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {entry.summary}" for name, entry in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="evenstep",
        usage="evenstep [--help] [--version] COMMAND ...",
        description="Makes the workers of a distributed training job finish iterations together.",
        epilog="\n".join(["commands:", *lines, "", "evenstep COMMAND --help shows its options."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"evenstep {__version__}")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _fail(message: str, program: str = "evenstep") -> int:
    # A message may quote a name from a file, and a terminal interprets control characters.
    line = "".join(c if c.isprintable() else "?" for c in " ".join(message.splitlines()))
    print(f"{program}: error: {line}", file=sys.stderr)
    return 2
