"""The job of a coordinator: its settings hold, and what a balancer was told must not contradict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evenstep.core.coordinator import JobCoordinator
from evenstep.errors import InvalidSetting
from evenstep.training.settings import Settings, name_of


def check_coordinator(coordinator: object) -> None:
    """Raise InvalidSetting unless it can be the coordinator of a worker, or none."""
    if coordinator is None:
        return
    if not isinstance(coordinator, JobCoordinator):
        raise InvalidSetting(
            "coordinator must be the client of a manager, as evenstep.connect returns it, "
            f"got {type(coordinator).__name__}"
        )
    if coordinator.agrees:
        raise InvalidSetting(
            "coordinator must be connected without agree=True, as the gradient exchange agrees"
        )


def agreed_job(coordinator: JobCoordinator | None, name: str | None) -> dict[str, Any]:
    """Return what must be the same on all workers, in a form that can be compared."""
    if coordinator is None:
        return {"job of the coordinator": None}
    how = "blocking" if coordinator.blocking else "non-blocking"
    return {
        "job of the coordinator": f"{coordinator.job} ({how}, {_settings(coordinator)})",
        "name in the job": name in (None, coordinator.worker),
    }


def of_job(
    settings: Settings, coordinator: JobCoordinator, num_workers: int, min_trainable: int
) -> Settings:
    """Return the settings with those of the job; raises where they contradict each other."""
    job = coordinator.settings
    if settings.mode != "balanced":
        raise InvalidSetting(
            f"mode must be 'balanced' with a coordinator, as the plans are those of job "
            f"{coordinator.job}, got {settings.mode!r}"
        )
    if settings.straggler == "restart":
        raise InvalidSetting(
            "straggler must be 'advise' or 'bench' with a coordinator, as advice does not travel "
            "with its plans, got 'restart'"
        )
    _require(coordinator, "workers", job.workers, num_workers)
    _require(coordinator, "total", job.total, settings.total)
    _require(coordinator, "minimum", job.minimum, settings.minimum)
    _require(coordinator, "granularity", job.granularity, settings.granularity)
    if settings.policy is not None:
        _require(coordinator, "policy", job.policy, name_of(settings.policy))
    if settings.predictor is not None:
        _require(coordinator, "predictor", job.predictor, settings.predictor)
    if 0 < job.minimum < min_trainable:
        raise InvalidSetting(
            f"minimum of job {coordinator.job} must be at least {min_trainable}, as the model has "
            f"BatchNorm, got {job.minimum}: evenstep.connect(..., minimum={min_trainable})"
        )
    return replace(settings, policy=job.policy, predictor=job.predictor)


def name_in(coordinator: JobCoordinator | None, name: str | None) -> str | None:
    """Return the name of this worker, which is the one that it has in its job."""
    if coordinator is None:
        return name
    if name is not None:
        _require(coordinator, "name", coordinator.worker, name)
    return coordinator.worker


def _require(coordinator: JobCoordinator, what: str, theirs: Any, ours: Any) -> None:
    if theirs != ours:
        raise InvalidSetting(
            f"{what} must be that of job {coordinator.job}, {theirs!r}, got {ours!r}"
        )


def _settings(coordinator: JobCoordinator) -> str:
    names = ("workers", "total", "policy", "predictor", "minimum", "granularity")
    return ", ".join(f"{name} {getattr(coordinator.settings, name)}" for name in names)
