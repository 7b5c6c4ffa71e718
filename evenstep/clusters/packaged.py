"""The tables that come with the package (data/SOURCE.md says where from)."""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib.resources import files


@cache
def read_table(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a table by its name.

    >>> read_table("cluster_b_workers")[0]
    {'worker': 'm4.2xlarge-0', 'instance': 'm4.2xlarge', 'machine_id': '660385'}
    """
    file = files("evenstep.clusters") / "data" / f"{name}.csv"
    return tuple(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))
