"""A snapshot of a manager: what there is to see of it at a moment, and may be read on any thread.

Taking it costs little, as it holds on to records that do not change; whatever takes time, such as
writing it down for Prometheus, is done with it elsewhere than on the manager's thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evenstep.core import Plan
from evenstep.manager.job import Job
from evenstep.manager.job_history import ClosedBoundary
from evenstep.manager.service import Service


@dataclass(frozen=True, eq=False)
class JobSnapshot:
    """A job that has workers."""

    job: str
    iteration: int
    members: tuple[str, ...]
    num_connected: int
    plan: Plan | None
    """The newest plan, with whom it is for; None while the job gathers."""
    planned: tuple[str, ...]
    last: ClosedBoundary | None
    """The boundary that was closed last; None before the first."""
    num_iterations: int
    num_plan_changes: int
    decision_seconds: float
    decisions: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A manager; jobs that nobody is working on are only counted."""

    jobs: tuple[JobSnapshot, ...]
    num_jobs: int
    refused: Mapping[str, int]
    num_leases_lost: int
    num_write_failures: int
    others: Mapping[str, float] = field(default_factory=dict)
    """Figures of other parts, by the names of `metrics.OTHERS`."""


def snapshot_of(service: Service, **others: float) -> Snapshot:
    """Return what there is to see of a manager now."""
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
    session, course = job.session, job.course
    plan = None if session is None else session.plan
    return JobSnapshot(
        job=job.name,
        iteration=job.iteration,
        members=job.workers,
        num_connected=job.num_connected,
        plan=plan,
        planned=() if session is None else session.workers_of(session.plan),
        last=course.last,
        num_iterations=course.num_iterations,
        num_plan_changes=course.num_plan_changes,
        decision_seconds=course.decision_seconds,
        decisions=tuple(course.decisions),
    )
