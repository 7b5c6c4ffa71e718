"""The writer: one line per record, written at once, so that others can read while it grows.

A row is written by one `%` per quantity, not by `json`: that costs a fraction of the time, rounds
the numbers, and writes 128.0 as 128. All text goes through `json`, which escapes everything but
ASCII, so that a record is always one line.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from evenstep.core import UNLIMITED, Floats, Ints, Plan
from evenstep.errors import InvalidSetting
from evenstep.runlog.checks import COUNTS, check
from evenstep.runlog.event import FIELDS, Event
from evenstep.runlog.header import VERSION, Header
from evenstep.runlog.iteration_row import MEASURES, IterationRow
from evenstep.runlog.plan_events import PlanEvents


class RunLogWriter:
    """Writes a run log to a path, or to an open text file, which the caller closes.

    The reader can read every record that the writer accepts; a record that breaks the format raises
    InvalidSetting, and nothing of it is written.

    >>> import io
    >>> file = io.StringIO()
    >>> header = Header("simulated", "G", ["w0"], total=8, policy="even", predictor="ema")
    >>> with RunLogWriter(file, header) as log:
    ...     log.iteration(IterationRow(0, plan=0, start=0.0, batch_sizes=[8], times=[0.1]))
    ...     log.event(Event("end", iteration=1))
    >>> print(file.getvalue().splitlines()[-1])
    {"event":"end","iteration":1}
    """

    def __init__(self, file: str | os.PathLike[str] | TextIO, header: Header) -> None:
        self._owned = isinstance(file, (str, os.PathLike))
        self._file = _open(file) if isinstance(file, (str, os.PathLike)) else file
        self._workers = tuple(header.workers)
        self._last_iteration = -1
        self._plan_events = PlanEvents()
        self._write(header_line(header))

    @property
    def workers(self) -> tuple[str, ...]:
        """The current workers: the order of the arrays of the next row."""
        return self._workers

    def iteration(self, row: IterationRow) -> None:
        """Write the row of an iteration; rows are written in the order of their numbers."""
        if row.num_workers != len(self._workers):
            raise InvalidSetting(
                f"a row must have one entry per worker ({len(self._workers)}), "
                f"got {row.num_workers}"
            )
        if row.iteration <= self._last_iteration:
            raise InvalidSetting(
                f"iteration must rise, got {row.iteration} after {self._last_iteration}"
            )
        self._write(row_line(row))
        self._last_iteration = row.iteration

    def event(self, event: Event) -> None:
        """Write an event; a join or leave changes the order of the arrays that follow it."""
        workers = self._workers if event.workers is None else tuple(event.workers)
        if event.batch_sizes is not None and len(event.batch_sizes) != len(workers):
            raise InvalidSetting(
                f"batch_sizes of an event must have one entry per worker ({len(workers)}), "
                f"got {len(event.batch_sizes)}"
            )
        self._write(event_line(event))
        self._workers = workers

    def plan(self, plan: Plan, iteration: int | None = None) -> None:
        """Write the changes in the plan of a boundary: adopted, proposed, phase, advice.

        Call it at every boundary; an unchanged plan writes nothing.
        """
        for event in self._plan_events.new_in(plan, self._workers, iteration):
            self.event(event)

    def close(self) -> None:
        if self._owned:
            self._file.close()

    def __enter__(self) -> RunLogWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()


def _open(path: str | os.PathLike[str]) -> TextIO:
    return Path(path).open("w", encoding="ascii", newline="\n")


DIGITS = {
    "times": 7,
    "waiting": 7,
    "predicted_speeds": 7,
    "cpu": 4,
    "memory": 4,
    "device_memory": 4,
}
"""Significant digits of each quantity: no clock or probe is more exact."""


HEADER = (
    "source", "job", "workers", "total", "scheme", "policy", "predictor", "seed", "created",
    "settings",
)  # fmt: skip
"""The keys of a header after the version, in the order of the file."""


def header_line(header: Header) -> str:
    values = {name: getattr(header, name) for name in HEADER}
    return _dump({"evenstep_run_log": VERSION, **values})


def event_line(event: Event) -> str:
    """Return the line of an event.

    >>> event_line(Event("phase", 17, phase="fine-tune"))
    '{"event":"phase","iteration":17,"phase":"fine-tune"}'
    """
    fields = {name: getattr(event, name) for name in FIELDS}
    known = {name: value for name, value in fields.items() if value is not None}
    if "predicted_time" in known:
        known["predicted_time"] = float(f"{known['predicted_time']:.7g}")
    return _dump({"event": event.kind, "iteration": event.iteration, **known})


def row_line(row: IterationRow) -> str:
    """Return the line of an iteration, without quantities that are unknown for all workers.

    >>> row_line(IterationRow(7, 2, start=1.5, batch_sizes=[8, 0], times=[0.2, float("nan")]))
    '{"iteration":7,"plan":2,"start":1.500000,"batch_sizes":[8,0],"times":[0.2,null]}'
    """
    start = f"{row.start:.6f}" if math.isfinite(row.start) else "null"
    templates = _templates(row.num_workers)
    parts = [
        f'{{"iteration":{row.iteration},"plan":{row.plan},"start":{start}',
        _sizes(row.batch_sizes, templates),
    ]
    for name in MEASURES:
        values = getattr(row, name)
        if values is not None:
            parts.append(_measure(name, values, templates))
    if row.caps is not None:
        parts.append(_caps(row.caps))
    return "".join(parts) + "}"


def _measure(name: str, values: Floats, templates: Mapping[str, str]) -> str:
    text = templates[name] % tuple(values.tolist())
    if "n" in text:  # as in nan, inf and -inf, which JSON does not have
        text = text.replace("nan", "null").replace("-inf", "null").replace("inf", "null")
        if text.count("null") == len(values):
            return ""
    return f',"{name}":[{text}]'


def _sizes(sizes: Ints, templates: Mapping[str, str]) -> str:
    values = sizes.tolist()
    check("batch_sizes", values, COUNTS)
    return f',"batch_sizes":[{templates["batch_sizes"] % tuple(values)}]'


def _caps(caps: Ints) -> str:
    values = [min(cap, UNLIMITED) for cap in caps.tolist()]
    check("caps", values, COUNTS)
    if min(values, default=UNLIMITED) == UNLIMITED:
        return ""
    text = ",".join(["null" if cap == UNLIMITED else str(cap) for cap in values])
    return f',"caps":[{text}]'


@lru_cache(maxsize=16)
def _templates(num_workers: int) -> Mapping[str, str]:
    entries = {name: f"%.{digits}g" for name, digits in DIGITS.items()}
    entries["batch_sizes"] = "%d"
    return {name: ",".join([entry] * num_workers) for name, entry in entries.items()}


def _dump(data: Mapping[str, Any]) -> str:
    return json.dumps(_plain(data), separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    """Return the value in JSON's types: NaN becomes null, a value of another type its text."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)
