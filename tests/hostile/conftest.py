"""How long the attacks take, and the table of what came of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.hostile.target import Figures


@dataclass(frozen=True)
class Scale:
    """How much there is of everything, and for how many seconds."""

    usual: float = 4.0
    flood: float = 6.0
    messages: int = 20_000
    kills: int = 5


LONG = Scale(usual=30.0, flood=120.0, messages=200_000, kills=50)

_rows: list[tuple[str, ...]] = []
_lines: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="attack for minutes, and kill 50 times")


@pytest.fixture(scope="session")
def is_long(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--long", default=False))


@pytest.fixture(scope="session")
def scale(is_long: bool) -> Scale:
    return LONG if is_long else Scale()


@pytest.fixture
def show() -> Iterator[list[Figures]]:
    """Figures that are added here are printed at the end of the run."""
    figures: list[Figures] = []
    yield figures
    _rows.extend(one.row() for one in figures)
    _lines.extend(f"{one.attack}: {_counted(one.came_of_it)}" for one in figures)


@pytest.fixture
def say() -> list[str]:
    """Lines that are added here are printed at the end of the run."""
    return _lines


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {what}" for what, number in counts.items())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _lines:
        return
    terminalreporter.section("the manager under attack")
    rows = [Figures.HEAD, *_rows] if _rows else []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        terminalreporter.line("  ".join([row[0].ljust(widths[0]), *cells]))
    for line in _lines:
        terminalreporter.line(line)
