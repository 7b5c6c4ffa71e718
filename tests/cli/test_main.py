"""The ``evenstep`` command: finding commands, and how it fails."""

import argparse
import importlib
import importlib.metadata
import io
import re
import signal
import subprocess
import sys
import types

import pytest

import evenstep
from evenstep.cli import main as cli
from evenstep.errors import EvenstepError
from evenstep.runlog import Event
from tests.runlog.examples import header, row, text_of


@pytest.fixture
def command(monkeypatch):
    """Register a command ``probe`` that takes ``--number`` and does what the test hands over."""

    def register(action):
        module = types.ModuleType("probe_command", "Probe the command line.\n\nIn two parts.")
        vars(module).update(
            add_arguments=lambda parser: parser.add_argument("--number", type=int), run=action
        )
        monkeypatch.setitem(sys.modules, "probe_command", module)
        monkeypatch.setitem(cli.COMMANDS, "probe", cli.Entry("probe_command", "probe things"))

    return register


def failing(error):
    def action(args):
        raise error

    return action


def exit_code(*argv):
    with pytest.raises(SystemExit) as stopped:
        cli.main(argv)
    return stopped.value.code


def test_version_is_that_of_the_package(capsys):
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"evenstep {evenstep.__version__}\n"


def test_help_lists_every_command_without_importing_it(monkeypatch, capsys):
    monkeypatch.setitem(cli.GROUPS["study"], "ghost", cli.Entry("no.such.module", "scare people"))
    assert exit_code("--help") == 0
    printed = capsys.readouterr().out
    for entries in cli.GROUPS.values():
        for name, entry in entries.items():
            assert name in printed
            assert entry.summary in printed


def test_bare_command_prints_the_help(capsys):
    assert exit_code("--help") == 0
    expected = capsys.readouterr()
    assert cli.main([]) == 0
    assert capsys.readouterr() == expected


def test_missing_package_names_the_one_extra_that_suffices(command, monkeypatch, capsys):
    command(failing(ModuleNotFoundError("No module named 'simpy'", name="simpy")))
    probe = cli.COMMANDS["probe"]._replace(extra="demo")
    monkeypatch.setitem(cli.COMMANDS, "probe", probe)
    assert cli.main(["probe"]) == 2
    text = "evenstep: error: simpy is not installed; pip install 'evenstep[demo]'\n"
    assert capsys.readouterr() == ("", text)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_what_a_command_needs(name):
    module = importlib.import_module(cli.COMMANDS[name].module)
    assert module.__doc__
    assert callable(module.add_arguments)
    assert callable(module.run)


def test_command_gets_its_arguments_and_gives_its_exit_code(command):
    command(lambda args: args.number)
    assert cli.main(["probe", "--number", "7"]) == 7


def test_command_help_shows_its_docstring(command, capsys):
    command(lambda args: 0)
    assert exit_code("probe", "--help") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: evenstep probe [-h] [--number NUMBER]\n")
    assert "Probe the command line.\n\nIn two parts." in printed


def widths(text):
    return [len(line) for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).splitlines()]


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_fits_the_terminal(command, monkeypatch):
    # Its width is read from the environment first.
    for columns in (80, 160):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stdout", Terminal())
        text = cli.parser_of(command).format_help()
        assert max(widths(text)) <= columns


class Terminal(io.StringIO):
    def isatty(self):
        return True


LONG = "a worker " * 20


def test_error_is_folded_between_words_on_a_terminal_alone(command, monkeypatch, capsys):
    command(failing(EvenstepError(LONG)))
    assert cli.main(["probe"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    for columns in (80, 160):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        assert cli.main(["probe"]) == 2
        assert 0.8 * columns < max(widths(terminal.getvalue())) <= columns
        assert terminal.getvalue().split() == line.split()


@pytest.mark.parametrize(
    ("argv", "got"),
    [
        (["simulat"], "'simulat'; did you mean simulate?"),
        (["nope", "--help"], "'nope'"),
    ],
)
def test_unknown_command_is_named_and_the_nearest_one_too(argv, got, capsys):
    assert exit_code(*argv) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("evenstep: error: ")
    assert last.endswith(f" {', '.join(cli.COMMANDS)}, got {got}")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["micro", "--quick"]])
def test_command_that_moved_says_where_to(arguments, capsys):
    assert cli.main(["reproduce", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert "python -m reproduction" in line


def options(name, parser):
    """The options of a command and its actions: (command, action of argparse)."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from options(f"{name} {word}", inner)
        elif action.option_strings:
            yield name, action


def test_an_option_has_one_name_and_takes_the_same_in_every_command():
    takes: dict[str, set[str]] = {}
    for command in cli.COMMANDS:
        for _, action in options(command, cli.parser_of(command)):
            for option in action.option_strings:
                takes.setdefault(option, set()).add(action.metavar or "")
    # The one difference: a page is one file, a demo leaves several.
    assert takes.pop("--out") == takes.pop("-o") == {"DIR", "FILE.html"}
    assert {option: what for option, what in takes.items() if len(what) > 1} == {}
    assert takes["--manager"] == {"HOST:PORT"}
    former = {old for renamed in cli.RENAMED.values() for old in renamed} - {"--seed"}
    assert former & set(takes) == set()


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [(command, *pair) for command, renamed in cli.RENAMED.items() for pair in renamed.items()],
)
@pytest.mark.parametrize("form", ["{} x", "{}=x"])
def test_former_name_of_an_option_says_the_new_one(command, old, new, form, capsys):
    assert exit_code(command, *form.format(old).split()) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"evenstep {command}: error: there is no {old} any more; ")
    assert line.endswith(new)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (EvenstepError("total must be >= 1,\ngot 0"), "total must be >= 1, got 0"),
        (
            ModuleNotFoundError("No module named 'simpy'", name="simpy"),
            "simpy is not installed; pip install 'evenstep[sim]'",
        ),
        (
            ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib.pyplot"),
            "matplotlib is not installed; pip install 'evenstep[plots]'",
        ),
        (
            FileNotFoundError(2, "No such file or directory", "cluster.toml"),
            "cluster.toml: No such file or directory",
        ),
    ],
)
def test_mistake_of_the_user_is_one_line(command, capsys, error, message):
    command(failing(error))
    assert cli.main(["probe"]) == 2
    assert capsys.readouterr() == ("", f"evenstep: error: {message}\n")


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("gone", name="evenstep.gone"), OSError("odd"), ValueError("bug")]
)
def test_mistake_of_ours_keeps_its_traceback(command, error):
    command(failing(error))
    with pytest.raises(type(error)):
        cli.main(["probe"])


LACKING = """
import sys
from evenstep.cli.main import main

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Lacking())
sys.exit(main(sys.argv[2:]))
"""
"""Runs a command where some packages are not installed."""


def packages_of(extras):
    """The packages that extras bring, by the names that are imported."""
    found: set[str] = set()
    for line in importlib.metadata.requires("evenstep") or ():
        wanted, _, marker = line.partition(";")
        if any(f"extra == '{extra}'" in marker.replace('"', "'") for extra in extras):
            name, _, inner = re.split(r"[<>=!~ ]", wanted)[0].rstrip("]").partition("[")
            names = {"scikit-learn": "sklearn", "prometheus-client": "prometheus_client"}
            found |= (
                packages_of(inner.split(",")) if name == "evenstep" else {names.get(name, name)}
            )
    return found


@pytest.mark.parametrize(
    ("argv", "extras"),
    [
        ("run train.py", "torch"),
        ("demo", "demo"),
        ("advise A:4", "sim"),
        ("advise A:4 --json", "sim"),
        ("report RUNLOG -o PAGE --plot PLOT", "plots"),
        ("watch RUNLOG", "sim"),
        ("watch --manager 127.0.0.1:1", "sim"),
        ("dashboard nowhere", "dashboard"),
        ("dashboard --manager nonsense:port", "dashboard"),
        ("manager --listen nonsense:port", "manager"),
        ("manager status --manager 127.0.0.1:1", "manager"),
        ("partition migrate --agents 127.0.0.1:1,127.0.0.1:2 --batch-sizes 1,2", "manager"),
        ("partition serve FOLDER", "manager"),
        ("simulate G --iterations 3", "sim"),
        ("simulate G --iterations 3 --plot PLOT", "sim,plots"),
        ("simulate P --workers 4 --iterations 3 --predictor arima", "sim,arima"),
        ("compare P --workers 4 --workload none --schemes asp --iterations 2", "demo"),
        ("load TRACE --duration 0.1", "sim"),
    ],
)
def test_the_named_extra_suffices(argv, extras, tmp_path):
    (tmp_path / "RUNLOG").write_text(text_of(header(), row(0), row(1), Event("end", 2)))
    (tmp_path / "TRACE").write_text("second,cpu,memory\n0,0.9,0.9\n1,0.9,0.9\n")
    argv = argv.replace("PLOT", "plot.svg").split()

    def run(lacking):
        command = [sys.executable, "-c", LACKING, ",".join(sorted(lacking)), *argv]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        return done.returncode, done.stderr

    code, error = run({*cli.EXTRAS})
    assert code == 2
    assert error.endswith(f" is not installed; pip install 'evenstep[{extras}]'\n")
    # They train.
    if argv[0] not in ("run", "demo"):
        code, error = run({*cli.EXTRAS} - packages_of(extras.split(",")))
        assert "not installed" not in error and "Traceback" not in error


def test_help_without_the_packages_of_a_command_says_what_it_does():
    command = [sys.executable, "-c", LACKING, ",".join(cli.EXTRAS), "watch", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert done.stdout.startswith("Watch a running job: a live table of its workers.\n")
    assert done.stderr.endswith("pip install 'evenstep[sim]'\n")


def test_every_extra_is_one_of_the_package():
    extras = importlib.metadata.metadata("evenstep").get_all("Provides-Extra") or []
    assert set(cli.EXTRAS.values()) <= set(extras)


def test_interrupt_exits_130_without_a_traceback(command, capsys):
    command(failing(KeyboardInterrupt()))
    assert cli.main(["probe"]) == 130
    assert capsys.readouterr() == ("", "")


CHATTERBOX = """
import sys, types
from evenstep.cli import main as cli

module = types.ModuleType("chatterbox", "Print more than any pipe holds.")
module.add_arguments = lambda parser: None
module.run = lambda args: print("all work and no play\\n" * 100_000) or 0
sys.modules["chatterbox"] = module
cli.COMMANDS["chatterbox"] = cli.Entry("chatterbox", "print and print")
sys.exit(cli.main(["chatterbox"]))
"""


def test_reader_that_goes_away_ends_it_quietly():
    process = subprocess.Popen(
        [sys.executable, "-c", CHATTERBOX],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    _, errors = process.communicate()
    assert (process.returncode, errors) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["simulate", "--sead", "3", "G"], "there is no option --sead; did you mean --seeds?"),
        (["manager", "status", "--tokn-file", "t"], "--tokn-file; did you mean --token-file?"),
    ],
)
def test_a_mistyped_option_gets_the_nearest_one(capsys, argv, message):
    with pytest.raises(SystemExit) as stopped:
        cli.main(argv)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
