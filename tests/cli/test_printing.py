"""Progress on a terminal: shown only after a while, and gone at the end."""

import io
import re
import threading
from types import SimpleNamespace

import pytest

from evenstep.cli import printing
from evenstep.cli.printing import busy


class Terminal(io.StringIO):
    """Stands for a terminal, and says when something was written to it."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def isatty(self):
        return True

    def write(self, text):
        self.written.set()
        return super().write(text)


@pytest.fixture
def terminal(monkeypatch):
    terminal = Terminal()
    # Not sys itself, whose streams pytest replaces after this.
    monkeypatch.setattr(printing, "sys", SimpleNamespace(stderr=terminal))
    return terminal


def test_what_takes_long_is_shown_and_erased_in_the_end(terminal, monkeypatch):
    monkeypatch.setattr(printing, "_PATIENCE", 0.01)
    with busy("counting"):
        assert terminal.written.wait(timeout=10)
    assert re.fullmatch(r"(\rcounting \.\.\. \d+ s\x1b\[K)+\r\x1b\[K", terminal.getvalue())


def test_long_name_is_cut_and_its_control_characters_are_not_sent(terminal, monkeypatch):
    monkeypatch.setattr(printing, "_PATIENCE", 0.01)
    monkeypatch.setenv("COLUMNS", "40")
    with busy("reading \x1b[31m" + 100 * "x"):
        assert terminal.written.wait(timeout=10)
    shown = terminal.getvalue().split("\x1b[K")[0]
    assert re.fullmatch(r"\rreading \?\[31mx+ \.\.\. 0 s", shown)
    assert len(shown) <= 40


def test_what_is_quick_shows_nothing(terminal):
    with busy("counting"):
        pass
    assert terminal.getvalue() == ""


def test_nothing_is_shown_without_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(printing, "_PATIENCE", 0.0)
    with busy("counting"):
        assert not [each for each in threading.enumerate() if "_show_until" in each.name]
    assert capsys.readouterr() == ("", "")


def test_error_passes_and_ends_the_line(terminal, monkeypatch):
    monkeypatch.setattr(printing, "_PATIENCE", 0.01)
    with pytest.raises(ZeroDivisionError), busy("dividing"):
        assert terminal.written.wait(timeout=10)
        raise ZeroDivisionError
    assert terminal.getvalue().endswith("\r\x1b[K")
