"""Cluster-B: the paper's 32 CPU instances under the load of a Google trace (section 5.3).

One of two unrelated hours of the trace drives it: `usage` or `tasks`. docs/clusters.md lists what
is measured and what is assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evenstep.core import UNLIMITED, Floats
from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.curves import Curves, linear
from evenstep.simulator.clusters.fake_tasks import FakeTasks
from evenstep.simulator.clusters.noise import QUIET, Noise, WorkerNoise
from evenstep.simulator.clusters.scenarios import CPU_KINDS, CPU_SAMPLES
from evenstep.simulator.clusters.scheduled import Scheduled
from evenstep.simulator.clusters.tables import read_table
from evenstep.simulator.clusters.traces import Trace, Traces

NUM_WORKERS = 32
NUM_BACKUPS = 2
_SPEEDS = {kind: speed for kind, _, speed in CPU_KINDS}
_NOISE = WorkerNoise(sigma=0.04, spike_probability=0.01, spike=(1.35, 2.0))
"""Assumed, as in the CPU scenarios."""
HOUR = 3600.0
"""Seconds after which the usage trace repeats, so that every hour contains all of it."""
LEVEL = 300.0
"""Seconds per level of the usage trace."""
_TASKS_SECONDS = 5011.0


def usage_trace(worker: str) -> Trace:
    """Return the CPU and memory left on a worker's machine in the `usage` hour.

    >>> usage_trace("m4.xlarge").cpu[:3]
    array([0.6046, 0.5792, 0.5853])
    """
    at, cpu, memory = _columns("cluster_b_usage", worker, ("second", "cpu", "memory"))
    return Trace(at, cpu, memory, "second", repeat=HOUR)


def worker_tasks(worker: str) -> FakeTasks:
    """Return the tasks that ran on a worker's machine in the `tasks` hour.

    >>> len(worker_tasks("backup-1").start)
    9
    """
    columns = _columns("cluster_b_tasks", worker, ("start", "end", "cpu", "memory"))
    return FakeTasks(*columns)


def _tasks_trace(worker: str) -> Trace:
    return worker_tasks(worker).trace(repeat=_TASKS_SECONDS)


TRACES: dict[str, Callable[[str], Trace]] = {"usage": usage_trace, "tasks": _tasks_trace}
"""The hours of the Google trace: name to a function that returns the trace of a worker."""


@dataclass(frozen=True)
class ClusterB:
    """Cluster-B: 32 workers and up to two backups, driven by one hour of the trace.

    >>> ClusterB(backups=2).make().workers[-3:]
    ['m4.xlarge', 'backup-0', 'backup-1']
    """

    trace: str = "usage"
    backups: int = 0

    def __post_init__(self) -> None:
        if self.trace not in TRACES:
            known = ", ".join(TRACES)
            raise InvalidSetting(f"trace of Cluster-B must be one of {known}, got {self.trace!r}")
        if self.backups not in range(NUM_BACKUPS + 1):
            rule = f"backups of Cluster-B must be 0 to {NUM_BACKUPS}"
            raise InvalidSetting(f"{rule}, got {self.backups}")

    def make(self, iterations: int | None = None, seed: int = 0, noisy: bool = True) -> Cluster:
        """Make the cluster for a run of `iterations`, by default 1500."""
        rows = read_table("cluster_b_workers")[: NUM_WORKERS + self.backups]
        workers = [row["worker"] for row in rows]
        return Cluster(
            name=f"Cluster-B, {self.trace}",
            workers=workers,
            curves=Curves.of([linear(_SPEEDS[row["instance"]]) for row in rows]),
            cap=np.full(len(rows), UNLIMITED),
            environment=Scheduled(
                # The paper: more than 99 % of the time is computation.
                communication=np.zeros(len(rows)),
                noise=Noise.of([_NOISE if noisy else QUIET] * len(rows), seed),
                traces=Traces.of([TRACES[self.trace](worker) for worker in workers]),
            ),
            total=CPU_SAMPLES * len(rows),
            iterations=1500 if iterations is None else iterations,
            score_from=500,
            policy="proportional",
        )


def _columns(name: str, worker: str, columns: tuple[str, ...]) -> list[Floats]:
    rows = [row for row in read_table(name) if row["worker"] == worker]
    if not rows:
        known = ", ".join(row["worker"] for row in read_table("cluster_b_workers"))
        raise InvalidSetting(f"worker of Cluster-B must be one of {known}, got {worker!r}")
    return [np.array([float(row[column]) for row in rows]) for column in columns]
