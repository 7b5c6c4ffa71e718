"""Replays a trace: yields its levels over time, at any speed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenstep.errors import ClusterFileError, InvalidSetting
from evenstep.simulator.clusters.cluster_b import TRACES
from evenstep.simulator.clusters.fake_tasks import FakeTasks
from evenstep.simulator.clusters.file.columns import Columns, read_columns
from evenstep.simulator.clusters.file.worker_groups import TRACE_COLUMNS, as_trace
from evenstep.simulator.clusters.traces import UNDISTURBED, UNITS, Trace


@dataclass(frozen=True)
class Level:
    """The load on a machine during a period."""

    second: float
    """Start in the trace."""
    start: float
    """Start in the replay, in seconds."""
    end: float
    cpu: float
    """Share of the CPUs that is taken."""
    memory: float
    """Share of the memory that is taken."""


def replay(trace: Trace, speedup: float = 1.0, duration: float | None = None) -> Iterator[Level]:
    """Yield the levels of a replay that lasts `duration` seconds, by default one trace.

    A shorter trace repeats if it has `repeat`; otherwise its last level stays.

    >>> import numpy as np
    >>> busy = Trace(np.array([0, 60]), np.array([1.0, 0.5]), np.ones(2), "second", repeat=90)
    >>> [(level.start, level.end, level.cpu) for level in replay(busy, speedup=30)]
    [(0.0, 2.0, 0.0), (2.0, 3.0, 0.5)]
    """
    if duration is None:
        if trace.repeat is None:
            raise InvalidSetting("a trace of levels has no end: a duration must be given, got none")
        duration = trace.repeat / speedup
    length = math.inf if trace.repeat is None else trace.repeat
    at, cpu, memory = (values.tolist() for values in (trace.at, 1 - trace.cpu, 1 - trace.memory))
    passed = 0.0
    while passed / speedup < duration:
        for second, end, *taken in zip(at, [*at[1:], length], cpu, memory, strict=True):
            start = (passed + second) / speedup
            if start >= duration:
                return
            shares = (round(share, 12) for share in taken)
            yield Level(second, start, min((passed + end) / speedup, duration), *shares)
        passed += length


_TASK_COLUMNS = ("start", "end", *TRACE_COLUMNS)
_NAMED = {f"B:{name}": trace for name, trace in TRACES.items()}


def read_trace(spec: str, worker: str | None = None) -> Trace:
    """Read a trace over seconds, given as tasks or as levels.

    A file has the columns start, end, cpu and memory (the share that each task takes), or second,
    cpu and memory (the share left from then on). `B:usage` and `B:tasks` are the traces of a worker
    of Cluster-B.

    >>> read_trace("B:tasks", worker="m4.xlarge").cpu[:3]
    array([0.7637, 0.7337, 0.7037])
    """
    if spec in _NAMED:
        if worker is None:
            raise InvalidSetting(f"{spec} has a trace for every worker: a worker must be named")
        return _NAMED[spec](worker)
    if worker is not None:
        raise InvalidSetting(
            f"a worker goes with {' or '.join(_NAMED)}, got {worker!r} with a file"
        )
    columns = read_columns(Path(spec), (*UNITS, *_TASK_COLUMNS))
    return _read_tasks(columns) if "start" in columns else _read_levels(columns)


def _read_tasks(columns: Columns) -> Trace:
    trace = UNDISTURBED
    with columns.locating():
        if set(columns.values) != set(_TASK_COLUMNS):
            raise InvalidSetting(f"columns must be {','.join(_TASK_COLUMNS)}, got {columns}")
        tasks = FakeTasks(*(columns[name] for name in _TASK_COLUMNS))
        if tasks.start.size == 0:
            raise InvalidSetting("there must be at least one task, got none")
        trace = tasks.trace(repeat=float(np.max(tasks.end)))
    return trace


def _read_levels(columns: Columns) -> Trace:
    if "iteration" in columns:
        raise ClusterFileError(
            f"{columns.file}:{columns.header_line}: a load needs a trace over seconds, "
            f"got {columns}"
        )
    return as_trace(columns)
