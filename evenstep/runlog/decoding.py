"""From lines to records, checking everything on the way.

Every function raises InvalidSetting where the content is wrong; who knows the line (the parser)
makes a RunLogError of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any, NoReturn

import numpy as np

from evenstep.core.arrays import Ints
from evenstep.core.limits import UNLIMITED
from evenstep.errors import InvalidSetting
from evenstep.runlog.checks import COUNT, NUMBER, are_counts, check, short
from evenstep.runlog.event import FIELDS, Event
from evenstep.runlog.header import VERSION, Header
from evenstep.runlog.iteration_row import MEASURES, QUANTITIES, IterationRow

Json = dict[str, Any]

_MEASURED = frozenset((int, float, type(None)))


def object_of(line: bytes) -> Json:
    """Return the JSON object on a line."""
    try:
        data = _DECODER.decode(line.decode())
    except (ValueError, RecursionError) as problem:
        raise InvalidSetting(
            f"a line must be a JSON object ({problem}), got {short(line)}"
        ) from None
    if not isinstance(data, dict):
        raise InvalidSetting(f"a line must be a JSON object, got {short(data)}")
    return data


def header_of(data: Json) -> Header:
    version = data.get("evenstep_run_log")
    if version is None:
        raise InvalidSetting(
            'a run log must begin with {"evenstep_run_log": ...}, got the keys ' + short(list(data))
        )
    if isinstance(version, bool) or version != VERSION:
        raise InvalidSetting(
            f"the version of a run log must be {VERSION}, got {short(version)}; "
            "a newer Evenstep may be able to read it"
        )
    return Header(
        source=_get(data, "source"),
        job=_get(data, "job"),
        workers=_get(data, "workers"),
        total=_get(data, "total"),
        policy=_get(data, "policy"),
        predictor=_get(data, "predictor"),
        scheme=data.get("scheme", "bsp"),
        seed=data.get("seed"),
        created=data.get("created"),
        settings=data.get("settings", {}),
    )


def event_of(data: Json) -> Event:
    fields = {name: data.get(name) for name in FIELDS}
    return Event(data["event"], _get(data, "iteration"), **fields)


def row_of(data: Json, workers: Sequence[str]) -> IterationRow:
    start = data.get("start")
    if start is not None:
        check("start", start, NUMBER)
    names = [name for name in QUANTITIES if data.get(name) is not None]
    if "batch_sizes" not in names:
        raise InvalidSetting(
            f"an iteration must have batch_sizes, got the keys {short(list(data))}"
        )
    for name in names:
        if not isinstance(data[name], list) or len(data[name]) != len(workers):
            _refuse_length(name, data[name], workers)
    columns = _measures(data, [name for name in names if name in MEASURES], workers)
    if "times" not in columns:
        columns["times"] = np.full(len(workers), np.nan)
    columns["batch_sizes"] = _counts("batch_sizes", data["batch_sizes"], workers)
    if "caps" in names:
        caps = [UNLIMITED if cap is None else cap for cap in data["caps"]]
        columns["caps"] = _counts("caps", caps, workers)
    return IterationRow(
        _get(data, "iteration"),
        _get(data, "plan"),
        np.nan if start is None else float(start),
        **columns,
    )


def _measures(data: Json, names: Sequence[str], workers: Sequence[str]) -> dict[str, Any]:
    """Return the measures of a row by their names.

    All numbers are looked at together, because a log has millions of them; only where something
    is wrong it is worth the time to find out what.
    """
    flat = list(chain.from_iterable(data[name] for name in names))
    if not _MEASURED.issuperset(map(type, flat)):
        _refuse_number(data, names, workers)
    try:
        block = np.array(flat, dtype=np.float64)
    except OverflowError:
        _refuse_number(data, names, workers)
    if np.isinf(block).any():
        _refuse_number(data, names, workers)
    return dict(zip(names, block.reshape(len(names), len(workers)), strict=True))


def _counts(name: str, values: list[Any], workers: Sequence[str]) -> Ints:
    if not are_counts(values):
        for worker, value in zip(workers, values, strict=True):
            check(f"{name} of worker {short(worker)}", value, COUNT)
    return np.array(values, dtype=np.int64)


def _refuse_length(name: str, values: object, workers: Sequence[str]) -> NoReturn:
    rule = f"{name} must be a list with one entry per worker ({len(workers)})"
    got = f"{len(values)} entries" if isinstance(values, list) else short(values)
    raise InvalidSetting(f"{rule}, got {got}")


def _refuse_number(data: Json, names: Sequence[str], workers: Sequence[str]) -> NoReturn:
    for name in names:
        for worker, value in zip(workers, data[name], strict=True):
            if value is not None:
                check(f"{name} of worker {short(worker)}", value, NUMBER)
    raise AssertionError("some number of this row was found wrong")


def _get(data: Json, name: str) -> Any:
    if name not in data:
        raise InvalidSetting(f"{name} must be there, got the keys {short(list(data))}")
    return data[name]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
