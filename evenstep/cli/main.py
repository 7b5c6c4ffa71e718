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
import ast
import inspect
import io
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from evenstep import __version__
from evenstep.cli.printing import folded, say, width_of
from evenstep.errors import EvenstepError


class Entry(NamedTuple):
    """What is known of a command without importing it."""

    module: str
    summary: str
    extra: str | None = None
    """The extra that brings all packages of the command, if it needs those of several."""


GROUPS: dict[str, dict[str, Entry]] = {
    "use": {
        "run": Entry(
            "evenstep.cli.run", "balance an unmodified PyTorch script, started by torchrun"
        ),
        "demo": Entry(
            "evenstep.cli.demo", "train on unequal workers here, plain and balanced", "demo"
        ),
        "doctor": Entry(
            "evenstep.cli.doctor", "check that balanced training works on this machine"
        ),
        "advise": Entry("evenstep.cli.advise", "estimate the gain of balancing before using it"),
        "report": Entry("evenstep.cli.report", "make the report of a run, as an HTML page"),
        "watch": Entry("evenstep.cli.watch", "watch a running job in the terminal"),
        "dashboard": Entry("evenstep.cli.dashboard", "show running jobs in a browser"),
        "completion": Entry("evenstep.cli.completion", "print a script for completion in a shell"),
    },
    "operate": {
        "manager": Entry("evenstep.cli.manager", "run the service that balances many jobs"),
        "partition": Entry("evenstep.cli.partition", "make, show, check and migrate partitions"),
    },
    "study": {
        "simulate": Entry("evenstep.cli.simulate", "show the effect of balancing in virtual time"),
        "compare": Entry(
            "evenstep.cli.compare", "train under several schemes, and compare them", "demo"
        ),
        "load": Entry("evenstep.cli.load", "replay a trace as real load on this machine", "sim"),
    },
}
"""The commands as the help shows them."""

COMMANDS: dict[str, Entry] = {
    name: entry for group in GROUPS.values() for name, entry in group.items()
}

MOVED: dict[str, str] = {
    "reproduce": "the paper's experiments are run from a checkout of Evenstep's repository: "
    "python -m reproduction ..."
}
"""Commands of former versions, and their replacements."""

_CLUSTER = "the cluster is an argument, like: evenstep"
RENAMED: dict[str, dict[str, str]] = {
    "advise": {"--cluster": f"{_CLUSTER} advise A:4"},
    "compare": {"--cluster": f"{_CLUSTER} compare B", "--seed": "--seeds"},
    "dashboard": {"--manager-token-file": "--token-file", "--manager-ca": "--tls-ca"},
    "load": {"--trace": "the trace is an argument, like: evenstep load tasks.csv"},
    "partition": {"--sizes": "--batch-sizes"},
    "report": {"--png": "--plot", "--output": "--out"},
    "simulate": {"--cluster": f"{_CLUSTER} simulate my-cluster.toml", "--seed": "--seeds"},
}
"""Options of former versions by command, and their replacements."""

EXTRAS: dict[str, str] = {
    "h11": "manager",
    "matplotlib": "plots",
    "prometheus_client": "manager",
    "psutil": "torch",
    "ray": "ray",
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

OPTION_EXTRAS: dict[str, str] = {"--plot": "plots", "arima": "arima", "ray": "ray"}
"""The further extras that a command needs with such an argument."""


class Command(Protocol):
    """The interface of a command's module."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Add the arguments of the command."""

    def run(self, args: argparse.Namespace, /) -> int:
        """Run the command and return its exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``argv`` defaults to that of the process."""
    return exit_code_of(lambda: _run(sys.argv[1:] if argv is None else argv))


def exit_code_of(
    action: Callable[[], int], program: str = "evenstep", extras: str | None = None
) -> int:
    """Return the exit code of an action; a user's mistake prints one line, with the program.

    A missing package is one of these extras, or of its own.
    """
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
        return _fail(missing_package(error, extras), program)
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
    if chosen.command in (None, "help"):
        parser.print_help()
        return 0
    if chosen.command not in COMMANDS:
        known, got = ", ".join(COMMANDS), chosen.command
        near = get_close_matches(got, COMMANDS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        parser.error(f"the command must be one of {known}, got {got!r}{meant}")
    try:
        return _run_command(chosen.command, chosen.arguments)
    except ModuleNotFoundError as error:
        message = missing_package(error, _extras(chosen.command, chosen.arguments, error))
        if {"-h", "--help"} & set(chosen.arguments):
            # Its options are unknown without the package, but not what it does.
            print(_docstring(chosen.command), flush=True)
        return _fail(message)


def _run_command(name: str, arguments: Sequence[str]) -> int:
    parser = parser_of(name)
    for old, new in RENAMED.get(name, {}).items():
        if any(argument.partition("=")[0] == old for argument in arguments):
            instead = f"use {new}" if new.startswith("--") else new
            parser.error(f"there is no {old} any more; {instead}")
    module = import_module(COMMANDS[name].module)
    parse = getattr(module, "parse", None)
    if parse is None:
        _check_options(parser, arguments)
        parse = argparse.ArgumentParser.parse_args
    return cast(Command, module).run(parse(parser, arguments))


def _check_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Say which option a mistyped one may mean: argparse would take its value for an argument."""
    known = options_of(parser)
    for argument in arguments:
        name = argument.partition("=")[0]
        if not name.startswith("--") or any(option.startswith(name) for option in known):
            continue
        near = get_close_matches(name, known, n=1)
        if near:
            parser.error(f"there is no option {name}; did you mean {near[0]}?")


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the long options of a command and of its subcommands."""
    found = []
    for action in parser._actions:
        found += [option for option in action.option_strings if option.startswith("--")]
        if isinstance(action, argparse._SubParsersAction):
            found += [option for sub in action.choices.values() for option in options_of(sub)]
    return found


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command, which is imported."""
    module = import_module(COMMANDS[name].module)
    parser = argparse.ArgumentParser(
        prog=f"evenstep {name}",
        description=inspect.getdoc(module),
        formatter_class=HelpFormatter,
    )
    cast(Command, module).add_arguments(parser)
    return parser


def missing_package(error: ModuleNotFoundError, extras: str | None = None) -> str:
    """Return what to install; raises the error if the module is not part of an extra.

    >>> missing_package(ModuleNotFoundError(name="torch.nn"), "demo")
    "torch is not installed; pip install 'evenstep[demo]'"
    """
    package = _package(error)
    if package not in EXTRAS:
        raise error
    return f"{package} is not installed; pip install 'evenstep[{extras or EXTRAS[package]}]'"


def _package(error: ModuleNotFoundError) -> str:
    return (error.name or "").partition(".")[0]


def _extras(name: str, arguments: Sequence[str], error: ModuleNotFoundError) -> str | None:
    """Return all extras that a command needs with these arguments, not only the first of them."""
    first = COMMANDS[name].extra or EXTRAS.get(_package(error))
    if first is None:
        return None
    asked = [
        extra
        for word, extra in OPTION_EXTRAS.items()
        if any(argument.startswith(word) for argument in arguments)
    ]
    # The demo's has the plots.
    asked = [extra for extra in asked if (first, extra) != ("demo", "plots")]
    return ",".join(dict.fromkeys([first, *asked]))


def _docstring(name: str) -> str:
    """Return the docstring of a command without importing it."""
    spec = find_spec(COMMANDS[name].module)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Folds the paragraphs of a docstring on a terminal; lists and examples keep their lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        columns = width_of(sys.stdout)
        if columns is None:
            return super()._fill_text(text, width, indent)
        paragraphs = text.split("\n\n")
        return "\n\n".join(
            paragraph if "\n " in paragraph else folded(" ".join(paragraph.split()), columns)
            for paragraph in paragraphs
        )


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    lines = []
    for group, entries in GROUPS.items():
        lines += [
            f"{group}:",
            *(f"  {name:{width}}  {e.summary}" for name, e in entries.items()),
            "",
        ]
    parser = argparse.ArgumentParser(
        prog="evenstep",
        usage="evenstep [--help] [--version] COMMAND ...",
        description="Makes the workers of a distributed training job finish iterations together.",
        epilog="\n".join([*lines, "evenstep COMMAND --help shows its options."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"evenstep {__version__}")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _fail(message: str, program: str = "evenstep") -> int:
    # A message may quote a name from a file, and a terminal interprets control characters.
    line = "".join(c if c.isprintable() else "?" for c in " ".join(message.splitlines()))
    say([f"{program}: error: {line}"], hanging=2, file=sys.stderr)
    return 2
