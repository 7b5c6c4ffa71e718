"""Rows of measured tables and of traces: which one breaks a rule."""

from __future__ import annotations

import numpy as np

from evenstep.core.arrays import Bools, Floats
from evenstep.errors import InvalidSetting


class InvalidRow(InvalidSetting):
    """A row breaks its rule; who knows where the rows came from can name the place."""

    def __init__(self, problem: str, row: int) -> None:
        super().__init__(f"{problem} in row {row}")
        self.problem = problem
        self.row = row
        """Counted from 0."""


def require_rows(ok: Bools, rule: str, values: Floats) -> None:
    """Raise InvalidRow for the first row whose value breaks the rule.

    >>> require_rows(np.array([True, False]), "seconds must be > 0", np.array([4.0, -5.0]))
    Traceback (most recent call last):
    evenstep.clusters.rows.InvalidRow: seconds must be > 0, got -5 in row 1
    """
    if not ok.all():
        row = int(np.argmin(ok))
        raise InvalidRow(f"{rule}, got {values[row]:g}", row)
