"""Converts and checks the structs of `manager.thrift`, to and from our records."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from evenstep.core import Plan, Report, Usage, frozen
from evenstep.core.short_form import LARGEST_WHOLE
from evenstep.errors import InvalidReport, InvalidSetting
from evenstep.manager.job import Job
from evenstep.manager.job_settings import JobSettings
from evenstep.manager.wire import types


def required(struct: Any, what: str) -> Any:
    """Return a required argument; raises InvalidSetting if it is missing."""
    if struct is None:
        raise InvalidSetting(f"{what} must be given and of the right type")
    return struct


def require_count(what: str, value: Any) -> int:
    """Return an iteration or the number of a plan after checking it."""
    if value is None or not 0 <= value <= LARGEST_WHOLE:
        raise InvalidSetting(f"{what} must be an integer from 0 to 2^53, got {value!r}")
    return int(value)


def to_settings(struct: Any) -> JobSettings:
    """Read the settings of a job; missing ones have their defaults."""
    values = {field.name: getattr(required(struct, "settings"), field.name) for field in _SETTINGS}
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return JobSettings(**given)
    except TypeError:
        raise InvalidSetting("settings of a job must give workers and total") from None


def from_settings(settings: JobSettings) -> Any:
    return types().Settings(**{field.name: getattr(settings, field.name) for field in _SETTINGS})


def to_report(worker: str, struct: Any) -> Report:
    """Read a worker's report."""
    struct = required(struct, "report")
    if struct.iteration is None:
        raise InvalidReport(f"a report of worker {worker} must give its iteration")
    return Report(
        worker,
        struct.iteration,
        struct.batch_size,
        struct.batch_processing_time,
        Usage(
            1.0 if struct.cpu is None else struct.cpu,
            1.0 if struct.memory is None else struct.memory,
            struct.device_memory,
        ),
        struct.cap,
        struct.measured,
    )


def from_report(report: Report, held: int | None) -> Any:
    usage, t = report.usage, report.batch_processing_time
    return types().Report(
        iteration=report.iteration,
        batch_size=None if report.batch_size is None else int(report.batch_size),
        batch_processing_time=None if t is None else float(t),
        cpu=float(usage.cpu),
        memory=float(usage.memory),
        device_memory=None if usage.device_memory is None else float(usage.device_memory),
        plan=held,
        cap=report.cap,
        measured=report.measured,
    )


def to_plan(struct: Any) -> tuple[Plan, tuple[str, ...]]:
    """Read a plan, and the workers that it is for."""
    plan = Plan(struct.number, struct.iteration, frozen(struct.sizes), struct.reason or "")
    return plan, tuple(struct.workers)


def from_plan(plan: Plan, workers: tuple[str, ...]) -> Any:
    return types().Plan(
        number=plan.number,
        iteration=plan.iteration,
        workers=list(workers),
        sizes=plan.sizes.tolist(),
        reason=plan.reason,
    )


def kept_plans(job: Job) -> list[Any]:
    """Return the plans that a job still keeps, as structs, newest last."""
    session = job.session
    if session is None:
        return []
    return [from_plan(plan, session.workers_of(plan)) for plan in session.plans]


def from_membership(job: Job, first: int) -> Any:
    """Return the reply to `join` of a worker that takes part from iteration `first` on."""
    *recent, plan = kept_plans(job) or [None]
    settings = from_settings(job.settings)
    return types().Membership(iteration=first, settings=settings, plan=plan, recent=recent)


def from_job(job: Job) -> Any:
    """Return the status of a job."""
    session = job.session
    plan = (kept_plans(job) or [None])[-1]
    sizes = {} if plan is None else dict(zip(plan.workers, plan.sizes, strict=True))
    missing = () if session is None else (*session.waiting_for, *session.joining)
    workers = [
        types().WorkerStatus(
            worker=worker,
            connected=job.is_connected(worker),
            reported=session is not None and worker not in missing,
            batch_size=sizes.get(worker),
        )
        for worker in job.workers
    ]
    return types().JobStatus(
        job=job.name,
        settings=from_settings(job.settings),
        running=session is not None,
        iteration=job.iteration,
        workers=workers,
        plan=plan,
    )


_SETTINGS = fields(JobSettings)
