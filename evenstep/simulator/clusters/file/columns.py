"""Reads the CSV files that a cluster file names: columns of numbers under a header."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenstep.core import Floats
from evenstep.errors import ClusterFileError, InvalidSetting
from evenstep.simulator.clusters.file.mistakes import suggest
from evenstep.simulator.clusters.tables import InvalidRow


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of one file by name, with the line of each row."""

    file: Path
    header_line: int
    lines: list[int]
    """The line of each row."""
    values: dict[str, Floats]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __str__(self) -> str:
        return ",".join(self.values)

    def __getitem__(self, name: str) -> Floats:
        return self.values[name]

    @contextmanager
    def locating(self) -> Iterator[None]:
        """Add file and line to the errors raised inside."""
        try:
            yield
        except InvalidRow as error:
            raise _mistake(self.file, self.lines[error.row], error.problem) from error
        except InvalidSetting as error:
            raise _mistake(self.file, self.header_line, str(error)) from error


def read_columns(file: Path, known: tuple[str, ...]) -> Columns:
    """Read a CSV file with columns from `known`, in any order.

    Empty lines and lines that start with # are skipped.
    """
    rows = _read_rows(file)
    if not rows:
        raise ClusterFileError(f"{file}: a header must name the columns, got an empty file")
    (header_line, names), *body = rows
    for i, name in enumerate(names):
        if name not in known:
            problem = f"{name!r} is not a known column{suggest(name, known)}"
            raise _mistake(file, header_line, problem)
        if name in names[:i]:
            raise _mistake(file, header_line, f"every column must be named once, got {name} twice")
    numbers = [_parse_row(file, line, cells, names) for line, cells in body]
    columns = np.array(numbers, dtype=np.float64).reshape(-1, len(names)).T
    return Columns(
        file, header_line, [line for line, _ in body], dict(zip(names, columns, strict=True))
    )


def _read_rows(file: Path) -> list[tuple[int, list[str]]]:
    """Return the cells of each row with its line, without empty lines and comments."""
    try:
        # Spreadsheets often start a file with a byte-order mark.
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ClusterFileError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ClusterFileError(f"{file}: must be UTF-8 text: {error.reason}") from error
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    except csv.Error as error:
        raise _mistake(file, reader.line_num, f"must be comma-separated values: {error}") from error
    return [(line, cells) for line, cells in rows if any(cells) and not cells[0].startswith("#")]


def _parse_row(file: Path, line: int, cells: list[str], names: list[str]) -> list[float]:
    if len(cells) != len(names):
        problem = f"a row must have {len(names)} values ({', '.join(names)}), got {len(cells)}"
        raise _mistake(file, line, problem)
    return [_parse_cell(file, line, *pair) for pair in zip(names, cells, strict=True)]


def _parse_cell(file: Path, line: int, name: str, cell: str) -> float:
    try:
        number = float(cell)
    except ValueError as error:
        raise _mistake(file, line, f"{name} must be a number, got {cell!r}") from error
    if not math.isfinite(number):
        raise _mistake(file, line, f"{name} must be finite, got {cell}")
    return number


def _mistake(file: Path, line: int, problem: str) -> ClusterFileError:
    return ClusterFileError(f"{file}:{line}: {problem}")
