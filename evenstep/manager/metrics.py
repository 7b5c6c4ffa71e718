"""Metrics for Prometheus: a snapshot of the manager, and its text.

A snapshot is cheap, as it refers to records that do not change. Its text is written on a thread of
its own that gives way to the manager's: a thousand workers have five thousand lines, and no worker
must wait at a boundary for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from evenstep.core import Plan
from evenstep.manager.job import Job
from evenstep.manager.job_history import BUCKETS, ClosedBoundary
from evenstep.manager.service import Service


@dataclass(frozen=True, eq=False)
class JobSnapshot:
    """The state of a job that has workers."""

    job: str
    iteration: int
    members: tuple[str, ...]
    num_connected: int
    plan: Plan | None
    """The newest plan; None while the job waits for its workers."""
    planned: tuple[str, ...]
    """The workers of that plan."""
    last: ClosedBoundary | None
    """The last closed boundary; None before the first."""
    num_iterations: int
    num_plan_changes: int
    decision_seconds: float
    decisions: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state of a manager; jobs without workers are only counted. Any thread may read it."""

    jobs: tuple[JobSnapshot, ...]
    num_jobs: int
    refused: Mapping[str, int]
    num_leases_lost: int
    num_write_failures: int
    others: Mapping[str, float] = field(default_factory=dict)
    """Values of other parts, by their names in `OTHERS`."""


def snapshot_of(service: Service, **others: float) -> Snapshot:
    """Return the present state of a manager."""
    jobs = service.jobs
    return Snapshot(
        jobs=tuple(_job(job) for job in jobs if job.workers),
        num_jobs=len(jobs),
        refused=dict(service.refused),
        num_leases_lost=service.num_leases_lost,
        num_write_failures=jobs.num_write_failures,
        others=others,
    )


def _job(job: Job) -> JobSnapshot:
    session, history = job.session, job.history
    plan = None if session is None else session.plan
    return JobSnapshot(
        job=job.name,
        iteration=job.iteration,
        members=job.workers,
        num_connected=job.num_connected,
        plan=plan,
        planned=() if session is None else session.workers_of(session.plan),
        last=history.last,
        num_iterations=history.num_iterations,
        num_plan_changes=history.num_plan_changes,
        decision_seconds=history.decision_seconds,
        decisions=tuple(history.decisions),
    )


Family = type[GaugeMetricFamily] | type[CounterMetricFamily]

OTHERS: dict[str, tuple[Family, str]] = {
    "connections": (GaugeMetricFamily, "Connections to the Thrift port."),
    "http_connections": (GaugeMetricFamily, "Connections to the HTTP port."),
    "event_followers": (GaugeMetricFamily, "Connections that follow the event stream."),
    "run_log_failures": (CounterMetricFamily, "Run logs that ended early because of the disk."),
    "run_log_left_out": (
        CounterMetricFamily,
        "Iterations that are in no run log because the disk was too slow.",
    ),
}
"""The metrics of other parts of a manager, with their descriptions."""

_PER_JOB: list[tuple[str, Family, str, Callable[[JobSnapshot], float]]] = [
    ("members", GaugeMetricFamily, "Workers of the job.", lambda job: len(job.members)),
    ("connected", GaugeMetricFamily, "Those that are connected.", lambda job: job.num_connected),
    ("iteration", GaugeMetricFamily, "k of the open boundary.", lambda job: job.iteration),
    ("iterations", CounterMetricFamily, "Those with a plan.", lambda job: job.num_iterations),
    (
        "plan_changes",
        CounterMetricFamily,
        "Plans with a new number.",
        lambda job: job.num_plan_changes,
    ),
]

_AT_ONCE = 25
"""Lines between two pauses for other threads; less than a millisecond of work."""
_PAUSE = 0.0002


class _Collected(Collector):
    """A snapshot as a collector of `prometheus_client`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        jobs = self._snapshot.jobs
        yield from manager_families(self._snapshot)
        yield from job_families(jobs)
        for family in worker_families(jobs):
            family.samples = _Paced(family.samples)
            yield family


class _Paced(list[Sample]):
    """A list whose iteration pauses now and then."""

    def __iter__(self) -> Iterator[Sample]:
        for i, sample in enumerate(super().__iter__(), start=1):
            if i % _AT_ONCE == 0:
                time.sleep(_PAUSE)
            yield sample


def render(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """Return the text of all metrics, and its content type, for an Accept header."""
    try:
        return _encoded(snapshot, accept)
    except (TypeError, ValueError):
        # The Accept header has a malformed version.
        return _encoded(snapshot, "")


def _encoded(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    encode, content_type = choose_encoder(accept)
    return encode(_Collected(snapshot)), content_type


def manager_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield the metrics of the manager itself."""
    jobs = GaugeMetricFamily("evenstep_jobs", "Jobs by state.", labels=["state"])
    num_running = sum(job.plan is not None for job in snapshot.jobs)
    num_gathering = len(snapshot.jobs) - num_running
    jobs.add_metric(["running"], num_running)
    jobs.add_metric(["gathering"], num_gathering)
    jobs.add_metric(["idle"], snapshot.num_jobs - num_running - num_gathering)
    yield jobs
    refused = CounterMetricFamily(
        "evenstep_refused_requests", "Requests that were refused.", labels=["problem"]
    )
    for problem, count in snapshot.refused.items():
        refused.add_metric([problem], count)
    yield refused
    yield CounterMetricFamily(
        "evenstep_leases_lost",
        "Workers that were silent longer than their lease.",
        value=snapshot.num_leases_lost,
    )
    yield CounterMetricFamily(
        "evenstep_state_write_failures",
        "Times that a job could not be written to --state.",
        value=snapshot.num_write_failures,
    )
    for name, value in snapshot.others.items():
        make, meaning = OTHERS[name]
        yield make(f"evenstep_{name}", meaning, value=value)


def job_families(jobs: Sequence[JobSnapshot]) -> Iterator[Metric]:
    """Yield the metrics of jobs that have workers."""
    for name, make, meaning, value_of in _PER_JOB:
        family = make(f"evenstep_{name}", meaning, labels=["job"])
        for job in jobs:
            family.add_metric([job.job], value_of(job))
        yield family
    decisions = HistogramMetricFamily(
        "evenstep_decision_seconds", "How long it took to decide on a plan.", labels=["job"]
    )
    bounds = [*map(str, BUCKETS), "+Inf"]
    for job in jobs:
        cumulative = accumulate(job.decisions)
        decisions.add_metric(
            [job.job],
            buckets=[(bound, float(n)) for bound, n in zip(bounds, cumulative, strict=True)],
            sum_value=job.decision_seconds,
        )
    yield decisions


def worker_families(jobs: Sequence[JobSnapshot]) -> Iterator[Metric]:
    """Yield the metrics of workers; unknown values are left out."""
    sizes = _per_worker("batch_size", "Samples of the worker in an iteration of the newest plan.")
    times = _per_worker(
        "batch_processing_time_seconds", "The worker's own work in the last iteration, unwaited."
    )
    waiting = _per_worker(
        "waiting_time_seconds", "Time that the worker waited for the slowest in the last iteration."
    )
    speeds = _per_worker(
        "predicted_speed", "Samples a second that are predicted for the worker's next iteration."
    )
    for job in jobs:
        if job.plan is not None:
            _add(sizes, job, job.planned, job.plan.sizes.tolist())
        time.sleep(_PAUSE)
        last = job.last
        if last is not None:
            _add(times, job, last.workers, last.measured.times.tolist())
            _add(waiting, job, last.workers, last.waiting.tolist())
            _add(speeds, job, last.workers, last.predicted_speeds.tolist())
    yield from (sizes, times, waiting, speeds)


def _per_worker(name: str, meaning: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"evenstep_{name}", meaning, labels=["job", "worker"])


def _add(
    family: GaugeMetricFamily, job: JobSnapshot, workers: Sequence[str], values: Iterable[float]
) -> None:
    members = frozenset(job.members)
    for worker, value in zip(workers, values, strict=True):
        if math.isfinite(value) and worker in members:
            family.add_metric([job.job, worker], value)
