"""Times from other tools: recognises the format of the files, and reads them."""

from __future__ import annotations

import csv
import gzip
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path

import numpy as np

from evenstep.core import Bools, Floats
from evenstep.errors import DataFileError, InvalidSetting
from evenstep.insight.advice.kineto import observations_of_traces
from evenstep.insight.advice.observations import Observations, given_sizes
from evenstep.insight.advice.straggler_log import is_straggler_log, observations_of_straggler_log

_GZIP = b"\x1f\x8b"


def read_times(
    paths: Sequence[str | os.PathLike[str]], batch_sizes: Sequence[int] | None = None
) -> Observations:
    """Read a table, the traces of the workers, or a log of straggler detection.

    `batch_sizes` are one for all workers, or one for each, if the files do not have them.
    Raises DataFileError if a file has none of these formats, or is damaged.
    """
    texts = {str(path): _text(Path(path)) for path in paths}
    if not texts:
        raise InvalidSetting("times must come from at least 1 file, got none")
    traces = {name: text for name, text in texts.items() if text.lstrip()[:1] in ("{", "[")}
    if traces and len(traces) == len(texts):
        return observations_of_traces(traces, batch_sizes)
    if len(texts) > 1:
        raise InvalidSetting(
            "several files of times must all be traces of the PyTorch profiler, one per worker; "
            f"got {len(texts) - len(traces)} that are not"
        )
    [(name, text)] = texts.items()
    if is_straggler_log(text):
        return observations_of_straggler_log(name, text, batch_sizes)
    return observations_of_table(name, text, batch_sizes)


def _text(path: Path) -> str:
    content = path.read_bytes()
    try:
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise DataFileError(f"{path}: times must be text in UTF-8 ({problem})") from None


COLUMNS = ("worker", "iteration", "batch_size", "seconds")

Cell = tuple[str, int, float, float]


def observations_of_table(
    name: str, text: str, batch_sizes: Sequence[int] | None = None
) -> Observations:
    """Read a table; columns are in any order, others are ignored, batch_size may be missing.

    Of several rows of a worker in an iteration, the last counts. Rows may be missing. The remarks
    have the numbers of both.

    >>> text = "worker,iteration,batch_size,seconds\\n" + "".join(
    ...     f"{worker},{k},8,0.{worker}\\n" for k in range(3) for worker in (1, 2)
    ... )
    >>> observations_of_table("t.csv", text).times[0]
    array([0.1, 0.2])
    """
    try:
        return _observations(name, text, batch_sizes)
    except csv.Error as problem:
        raise DataFileError(f"{name}: a table of times must be CSV ({problem})") from None


def _observations(name: str, text: str, batch_sizes: Sequence[int] | None) -> Observations:
    # Lines may have the ends of any system.
    table = csv.DictReader(StringIO(text, newline=None), skipinitialspace=True)
    columns = [column.strip() for column in table.fieldnames or ()]
    needed = [column for column in COLUMNS if column != "batch_size" or batch_sizes is None]
    missing = [column for column in needed if column not in columns]
    if missing:
        raise DataFileError(
            f"{name}: a table of times must have the columns {', '.join(needed)}, "
            f"got {', '.join(columns) or 'nothing'}"
        )
    table.fieldnames = columns
    cells = [_cell(f"{name}, line {table.line_num}", row, batch_sizes is None) for row in table]
    workers = list(dict.fromkeys(worker for worker, *_ in cells))
    iterations = sorted({iteration for _, iteration, *_ in cells})
    column = {worker: i for i, worker in enumerate(workers)}
    row_of = {iteration: k for k, iteration in enumerate(iterations)}
    sizes, times = np.full((2, len(iterations), len(workers)), np.nan)
    for worker, iteration, size, seconds in cells:
        at = row_of[iteration], column[worker]
        sizes[at], times[at] = size, seconds
    missing_rows = np.isnan(times)
    remarks = tuple(_remarks(len(cells) - int((~missing_rows).sum()), missing_rows))
    if batch_sizes is not None:
        sizes[:] = given_sizes(batch_sizes, len(workers), name)
    total = _total(name, sizes)
    # The time of a missing row is unknown: with a size of 0, the worker would count as idle.
    sizes = np.where(np.isnan(sizes), np.nanmedian(sizes, axis=0), sizes)
    return Observations(workers, sizes, times, total, remarks=remarks)


def _remarks(num_dropped: int, missing: Bools) -> Iterator[str]:
    if num_dropped:
        yield (
            f"Dropped {num_dropped} duplicate row{'s' if num_dropped > 1 else ''}: of several rows "
            "of a worker in one iteration, the last counts."
        )
    if missing.any():
        yield (
            f"{missing.sum()} of {missing.size} rows are missing: the times of these workers in "
            "these iterations count as unknown."
        )


def _total(name: str, sizes: Floats) -> int:
    whole = sizes[~np.isnan(sizes).any(axis=1)]
    if not len(whole):
        raise DataFileError(f"{name}: some iteration must have all workers, got none that has")
    return round(float(np.median(whole.sum(axis=1))))


def _cell(where: str, row: Mapping[str, str | None], with_size: bool) -> Cell:
    worker = (row["worker"] or "").strip()
    if not worker:
        raise DataFileError(f"{where}: worker must be a name, got {row['worker']!r}")
    iteration = _number(where, row, "iteration", lambda value: value >= 0 and value % 1 == 0)
    size = _number(where, row, "batch_size", lambda value: value >= 0) if with_size else math.nan
    seconds = _number(where, row, "seconds", lambda value: value > 0)
    return worker, int(iteration), size, seconds


def _number(
    where: str, row: Mapping[str, str | None], column: str, holds: Callable[[float], bool]
) -> float:
    rule = {"iteration": "a whole number >= 0", "batch_size": "a number >= 0"}
    try:
        value = float(row[column] or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and holds(value)):
        raise DataFileError(
            f"{where}: {column} must be {rule.get(column, 'a number > 0')}, got {row[column]!r}"
        )
    return value
