"""Reads the [[workers]] tables of a cluster file; each is a group of identical workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from evenstep.core import UNLIMITED
from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.conditions import NO_SWAP, Swap
from evenstep.simulator.clusters.curves import Points, affine, linear, table
from evenstep.simulator.clusters.file.columns import Columns, read_columns
from evenstep.simulator.clusters.file.mistakes import show
from evenstep.simulator.clusters.file.section import Section, check_pair
from evenstep.simulator.clusters.noise import QUIET, WorkerNoise
from evenstep.simulator.clusters.tables import InvalidRow
from evenstep.simulator.clusters.traces import UNDISTURBED, UNITS, Trace

WORKER_KEYS = (
    "name",
    "count",
    "speed",
    "curve",
    "table",
    "communication",
    "bandwidth",
    "memory_cap",
    "noise",
    "trace",
    "swap",
)
_TABLE_COLUMNS = ("batch_size", "seconds")
TRACE_COLUMNS = ("cpu", "memory")
_MOST_WORKERS = 1_000_000
_STAND_IN = linear(1.0)
"""The curve used after a mistake was noted."""


@dataclass
class WorkerGroup:
    """The settings of one table; an invalid one keeps its default."""

    name: str = ""
    count: int = 1
    curve: Points = _STAND_IN
    communication: float = 0.0
    bandwidth: float = np.nan
    memory_cap: int = UNLIMITED
    noise: WorkerNoise = QUIET
    trace: Trace = UNDISTURBED

    @property
    def names(self) -> list[str]:
        """The names of the group's workers, numbered if there are several."""
        if self.count == 1:
            return [self.name]
        return [f"{self.name}-{i}" for i in range(self.count)]


def read_group(section: Section, folder: Path, noise: WorkerNoise) -> WorkerGroup:
    """Read one table; `noise` is the default of the file."""
    group = WorkerGroup(noise=noise)
    with section.noting():
        group.name = section.text("name")
    with section.noting():
        group.count = section.whole("count", 1, least=1, most=_MOST_WORKERS)
    with section.noting():
        group.curve = _read_curve(section, folder)
    with section.noting():
        group.communication = section.number("communication", 0.0, least=0.0)
    with section.noting():
        group.bandwidth = _read_bandwidth(section)
    with section.noting():
        group.memory_cap = section.whole("memory_cap", UNLIMITED, least=1, most=UNLIMITED)
    with section.noting():
        group.noise = read_noise(section, noise)
    with section.noting():
        group.trace = _read_trace(section, folder)
    return group


def _read_bandwidth(section: Section) -> float:
    bandwidth = section.optional_number("bandwidth")
    if bandwidth is not None and bandwidth <= 0:
        raise InvalidSetting(f"bandwidth must be > 0, got {bandwidth}")
    return np.nan if bandwidth is None else bandwidth


def read_noise(section: Section, default: WorkerNoise) -> WorkerNoise:
    """Read the noise of a table or of the whole file."""
    noise = default
    if "noise" in section:
        inner = section.section("noise", ("sigma", "spike_probability", "spike"))
        with inner.noting():
            noise = WorkerNoise(
                inner.number("sigma", QUIET.sigma),
                inner.number("spike_probability", QUIET.spike_probability),
                check_pair("spike", inner.get("spike", list(QUIET.spike))),
            )
    return noise


def _read_curve(section: Section, folder: Path) -> Points:
    given = [key for key in ("speed", "curve", "table") if key in section]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise InvalidSetting(f"exactly one of speed, curve and table must be given, got {got}")
    if given == ["speed"]:
        return linear(section.number("speed"))
    if given == ["curve"]:
        return _read_affine(section)
    rows = section.get("table")
    return _read_rows(section, rows) if isinstance(rows, list) else _read_table(section, folder)


def _read_affine(section: Section) -> Points:
    inner = section.section("curve", ("overhead", "per_sample", "saturation"))
    curve = _STAND_IN
    with inner.noting():
        curve = affine(
            inner.number("overhead", 0.0),
            inner.number("per_sample"),
            inner.number("saturation", 0.0),
        )
    return curve


def _read_rows(section: Section, rows: list[object]) -> Points:
    """Read a table written inline in the cluster file."""
    points = []
    for i, row in enumerate(rows):
        with section.noting("table", i):
            points.append(check_pair("a row", row))
    if len(points) < len(rows):
        return _STAND_IN
    try:
        return table(points)
    except InvalidRow as error:
        section.note(error.problem, "table", error.row)
    except InvalidSetting as error:
        section.note(str(error), "table")
    return _STAND_IN


def _read_table(section: Section, folder: Path) -> Points:
    columns = read_columns(_find(section, "table", folder), _TABLE_COLUMNS)
    curve = _STAND_IN
    with columns.locating():
        if len(columns.values) < len(_TABLE_COLUMNS):
            raise InvalidSetting(f"columns must be {','.join(_TABLE_COLUMNS)}, got {columns}")
        sizes, seconds = (columns[name].tolist() for name in _TABLE_COLUMNS)
        curve = table(list(zip(sizes, seconds, strict=True)))
    return curve


def _read_trace(section: Section, folder: Path) -> Trace:
    swap = _read_swap(section)
    if "trace" not in section:
        if "swap" in section:
            raise InvalidSetting("swap must come with a trace, which says how much memory is free")
        return UNDISTURBED
    inner = _open_trace(section)
    trace = UNDISTURBED
    with inner.noting():
        columns = read_columns(_find(inner, "file", folder), (*UNITS, *TRACE_COLUMNS))
        if "swap" in section and "memory" not in columns:
            raise InvalidSetting(f"a worker with swap must have a memory column, got {columns}")
        trace = replace(as_trace(columns), repeat=inner.optional_number("repeat"), swap=swap)
    return trace


def _open_trace(section: Section) -> Section:
    """Return the table of the trace; a file name alone is short for one."""
    given = section.get("trace")
    if isinstance(given, str):
        section = replace(section, values={**section.values, "trace": {"file": given}})
    elif not isinstance(given, dict):
        raise InvalidSetting(f"trace must be the name of a file or a table, got {show(given)}")
    return section.section("trace", ("file", "repeat"))


def as_trace(columns: Columns) -> Trace:
    """Return the trace defined by the columns of a file."""
    trace = UNDISTURBED
    with columns.locating():
        units = [unit for unit in UNITS if unit in columns]
        if len(units) != 1 or len(columns.values) < 2:
            raise InvalidSetting(
                f"columns must be {' or '.join(UNITS)}, then cpu, memory or both, got {columns}"
            )
        at = columns[units[0]]
        cpu, memory = (columns.values.get(name, np.ones_like(at)) for name in TRACE_COLUMNS)
        trace = Trace(at, cpu, memory, units[0])
    return trace


def _read_swap(section: Section) -> Swap:
    swap = NO_SWAP
    if "swap" in section:
        inner = section.section("swap", ("needed", "strength"))
        with inner.noting():
            swap = Swap(inner.number("needed", NO_SWAP.needed), inner.number("strength"))
    return swap


def _find(section: Section, key: str, folder: Path) -> Path:
    """Return the file named at a key, relative to the folder of the cluster file."""
    file = folder / section.text(key)
    if not file.is_file():
        raise InvalidSetting(f"{key} must name an existing file, got {str(file)!r}")
    return file
