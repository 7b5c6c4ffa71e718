"""What tests of commands share; the module says which one is meant: ``COMMAND = "simulate"``."""

import json

import pytest

from evenstep.cli.main import main
from tests.terminal import shown_on_terminal


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    """However these tests are started, what they print goes to no terminal."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def printed(request, capsys):
    """Runs a command that must end well and quietly, and returns what it prints."""

    def run(*argv):
        code = main([request.module.COMMAND, *map(str, argv)])
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        return out

    return run


def no_constants(name):
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture
def figures(printed):
    """Runs a command that must end well, and returns its figures."""

    def run(*argv):
        return json.loads(printed(*argv, "--json"), parse_constant=no_constants)

    return run


@pytest.fixture
def refused(request, capsys):
    """Runs a command that must be refused, and returns the message."""

    def run(*argv):
        command = request.module.COMMAND
        try:
            code: object = main([command, *map(str, argv)])
        except SystemExit as stopped:
            code = stopped.code
        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        *usage, message = err.splitlines()
        assert not usage or usage[0].startswith(f"usage: evenstep {command}")
        for start in ("evenstep: error: ", f"evenstep {command}: error: "):
            if message.startswith(start):
                return message.removeprefix(start)
        raise AssertionError(err)

    return run


@pytest.fixture
def shown(request):
    """Runs a command that must end well on a terminal, and returns all that this was shown."""

    def run(*argv):
        return shown_on_terminal("evenstep", request.module.COMMAND, *argv)

    return run
