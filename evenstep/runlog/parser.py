"""The parser: turns pieces of text into records. It does no I/O, so it can follow a growing file.

The functions raise InvalidSetting for wrong content; the parser, which knows the number of the
line, turns that into a RunLogError.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any, NoReturn

import numpy as np

from evenstep.core import UNLIMITED, Ints
from evenstep.errors import InvalidSetting, RunLogError
from evenstep.runlog.checks import COUNT, NAME, NUMBER, are_counts, check, short
from evenstep.runlog.event import EVENTS, FIELDS, Event
from evenstep.runlog.header import VERSION, Header
from evenstep.runlog.iteration_row import MEASURES, QUANTITIES, IterationRow

Record = Header | IterationRow | Event

MAX_LINE = 2**26
"""Bytes of the longest line that is accepted: enough for a million workers."""

_ROW = b'{"iteration":'


class RunLogParser:
    """Turns the text of a run log, in pieces of any size, into records.

    Damage is a RunLogError with the number of the line. The records before it are not lost: if a
    piece has some, they are returned, and the next call raises the error.

    >>> parser = RunLogParser()
    >>> parser.feed('{"evenstep_run_log":1,"source":"simulated","job":"G","workers":["w0"],')
    []
    >>> [header] = parser.feed('"total":8,"policy":"even","predictor":"ema"}\\n{"iteration":0,')
    >>> header.workers, parser.cut
    (('w0',), True)
    """

    def __init__(self, name: str = "run log") -> None:
        self._name = name
        self._rest = b""
        self._line = 0
        self._rows = 0
        self._last_iteration = -1
        self._damage: RunLogError | None = None
        self.header: Header | None = None
        self.every = 1
        """One in this number of rows is parsed; the others are skipped unchecked."""
        self.num_skipped = 0
        """Rows that were skipped."""
        self.workers: tuple[str, ...] = ()
        """The current workers: the order of the arrays of the next row."""

    @property
    def cut(self) -> bool:
        """Whether the last line is incomplete."""
        return self._rest.strip() != b""

    def feed(self, text: str | bytes) -> list[Record]:
        """Return the records that this piece of text completes."""
        if self._damage is not None:
            raise self._damage
        if isinstance(text, str):
            text = text.encode("utf-8", "surrogatepass")
        *lines, self._rest = (self._rest + text).split(b"\n")
        records: list[Record] = []
        try:
            for line in lines:
                self._line += 1
                record = self._take(line)
                if record is not None:
                    records.append(record)
            self._check_rest()
        except InvalidSetting as problem:
            self._damage = RunLogError(f"{self._name}, line {self._line}: {problem}")
            if not records:
                raise self._damage from None
        return records

    def finish(self) -> list[Record]:
        """Return the last record if its line is complete but for the line break.

        Call it at the end of the text. Afterwards, `cut` is true if half a line is left.
        """
        if self._damage is not None:
            raise self._damage
        try:
            object_of(self._rest)
        except InvalidSetting:
            return []
        return self.feed("\n")

    def _take(self, line: bytes) -> Record | None:
        if not line.strip() or self._is_skipped(line):
            return None
        data = object_of(line)
        if self.header is None:
            self.header = header_of(data)
            self.workers = tuple(self.header.workers)
            return self.header
        if "event" in data:
            check("event", data["event"], NAME)
            # An unknown kind comes from a newer Evenstep, and is no damage.
            return self._take_event(event_of(data)) if data["event"] in EVENTS else None
        row = row_of(data, self.workers)
        if row.iteration <= self._last_iteration:
            raise InvalidSetting(
                f"iteration must rise, got {row.iteration} after {self._last_iteration}"
            )
        self._last_iteration = row.iteration
        return row

    def _is_skipped(self, line: bytes) -> bool:
        """Whether a line is a row, as our writer begins them, that is skipped."""
        if not line.startswith(_ROW):
            return False
        # Rows are counted, not lines: where a plan follows every row, every other line is one.
        self._rows += 1
        if self._rows % self.every == 0:
            return False
        self.num_skipped += 1
        return True

    def _take_event(self, event: Event) -> Event:
        if event.workers is not None:
            self.workers = tuple(event.workers)
        if event.batch_sizes is not None and len(event.batch_sizes) != len(self.workers):
            raise InvalidSetting(
                f"batch_sizes must be a list with one entry per worker ({len(self.workers)}), "
                f"got {len(event.batch_sizes)} entries"
            )
        return event

    def _check_rest(self) -> None:
        """Refuse early a text that cannot become a line, such as gigabytes of another format."""
        if len(self._rest) > MAX_LINE:
            self._line += 1
            raise InvalidSetting(f"a line must have at most {MAX_LINE} bytes")
        if self.header is None and self._rest.lstrip()[:1] not in (b"", b"{"):
            self._line += 1
            object_of(self._rest)


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
    names = ("source", "job", "workers", "total", "policy", "predictor")
    return Header(
        **{name: _get(data, name) for name in names},
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
    """Return the measures of a row by name.

    All numbers are checked together, because a log has millions of them; the wrong one is searched
    for only if the check fails.
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
