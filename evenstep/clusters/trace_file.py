"""Traces of one machine from where they lie: a CSV file, or an hour of Cluster-B's."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evenstep.clusters.cluster_b import TRACES
from evenstep.clusters.fake_tasks import FakeTasks
from evenstep.clusters.file.columns import Columns, read_columns
from evenstep.clusters.file.worker_groups import TRACE_COLUMNS, as_trace
from evenstep.clusters.traces import UNDISTURBED, UNITS, Trace
from evenstep.errors import ClusterFileError, InvalidSetting

_TASK_COLUMNS = ("start", "end", *TRACE_COLUMNS)
_NAMED = {f"B:{name}": trace for name, trace in TRACES.items()}


def read_trace(spec: str, worker: str | None = None) -> Trace:
    """Read a trace over seconds: levels, or tasks and what they leave of the machine.

    A file has the columns start, end, cpu and memory (what each task takes), or second, cpu and
    memory (what is left from then on). `B:usage` and `B:tasks` are those of a worker of Cluster-B.

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
    with columns.placing():
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
