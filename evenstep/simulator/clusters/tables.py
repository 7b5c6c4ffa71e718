"""The tables bundled with the package (data/SOURCE.md lists their sources)."""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib.resources import files

import numpy as np

from evenstep.core import Bools, Floats
from evenstep.errors import InvalidSetting


@cache
def read_table(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a table by its name.

    >>> read_table("cluster_b_workers")[0]
    {'worker': 'm4.2xlarge-0', 'instance': 'm4.2xlarge', 'machine_id': '660385'}
    """
    file = files("evenstep.simulator.clusters") / "data" / f"{name}.csv"
    return tuple(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))


class InvalidRow(InvalidSetting):
    """A row breaks its rule; the caller that read the rows can add file and line."""

    def __init__(self, problem: str, row: int) -> None:
        super().__init__(f"{problem} in row {row}")
        self.problem = problem
        self.row = row
        """Counted from 0."""


def require_rows(ok: Bools, rule: str, values: Floats) -> None:
    """Raise InvalidRow for the first row whose value breaks the rule.

    >>> require_rows(np.array([True, False]), "seconds must be > 0", np.array([4.0, -5.0]))
    Traceback (most recent call last):
    evenstep.simulator.clusters.tables.InvalidRow: seconds must be > 0, got -5 in row 1
    """
    if not ok.all():
        row = int(np.argmin(ok))
        raise InvalidRow(f"{rule}, got {values[row]:g}", row)
