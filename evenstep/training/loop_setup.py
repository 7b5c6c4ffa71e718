"""Makes the loop of a worker from the options of its user; all workers do so together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evenstep.core import Policy
from evenstep.core.coordinator import JobCoordinator
from evenstep.errors import EvenstepError, InvalidSetting
from evenstep.measure.timer import HostTimer
from evenstep.training.boundary import Boundary
from evenstep.training.collective import (
    Collective,
    exchange_names,
    gather_values,
    require_agreement,
)
from evenstep.training.heartbeat import SharedStore, make_heartbeat
from evenstep.training.local_planning import LocalPlanning
from evenstep.training.loop import Loop, Restart, away_from
from evenstep.training.manager_planning import Away, ManagerPlanning
from evenstep.training.recorder import Log, Recorder, RunTotals, header_of
from evenstep.training.report_rows import ExtraColumn
from evenstep.training.reporter import Reporter
from evenstep.training.settings import (
    Options,
    Settings,
    check_names,
    check_sizes,
    choose_predictor,
    choose_sizes,
    name_of,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


def make_loop(
    collective: Collective,
    total: int,
    *,
    framework: str,
    device: str = "cpu",
    device_name: str | None = None,
    min_trainable: int = 1,
    lag: int = 0,
    micro_batches: bool = False,
    straggler: str = "advise",
    rebuilds: int = 0,
    common: Mapping[str, Any] | None = None,
    check: Callable[[], None] | None = None,
    column: ExtraColumn | None = None,
    restart: Restart | None = None,
    fetches_ahead: bool = False,
    store: Callable[[], SharedStore | None] | None = None,
    **options: Unpack[Options],
) -> Loop:
    """Return the loop of this worker; all workers must call it.

    `options` come from the user, in every framework; the other arguments come from the adapter.
    `device` is the kind of device that the workers compute on, `device_name` identifies one of
    several. `rebuilds` is the number of iterations at the start whose times are not reported, in
    addition to `warm_up`. `common` must be the same on all workers; once that is known, `check`
    raises errors for other settings. `store` connects to a store for the signs of life of all
    workers, if the framework has one.
    """
    settings = settle(
        collective, total, options, min_trainable=min_trainable, micro_batches=micro_batches,
        straggler=straggler, common=common, check=check,
    )  # fmt: skip
    coordinator, log = options.get("coordinator"), options.get("log")
    name = _name_in(coordinator, options.get("name"))
    members, device = exchange_names(collective, name, device, device_name)
    policy = settings.make_policy(device)
    timer = options.get("timer") or HostTimer()
    boundary = make_boundary(
        settings, policy, members, coordinator, collective, lambda: away_from(timer), lag, log,
        options.get("source", "measured"), framework,
    )  # fmt: skip
    reporter = Reporter(
        # A coordinator predicts for all workers.
        choose_predictor(policy, settings.predictor) if coordinator is None else None,
        timer, settings.warm_up + rebuilds, reads=bool(log) or policy.uses_speeds,
    )  # fmt: skip
    loop = Loop(
        collective, settings, boundary, timer, reporter, min_trainable=min_trainable, lag=lag,
        column=column, restart=restart, summary=options.get("summary", True),
        fetches_ahead=fetches_ahead,
    )  # fmt: skip
    loop.heartbeat = make_heartbeat(
        collective, members, store, loop.progress, loop.note, settings.watchdog
    )
    return loop


def settle(
    collective: Collective,
    total: int,
    options: Options,
    *,
    min_trainable: int,
    micro_batches: bool = False,
    straggler: str = "advise",
    common: Mapping[str, Any] | None = None,
    check: Callable[[], None] | None = None,
) -> Settings:
    """Return the checked settings of all workers, with those of the job if there is one."""
    check_names(options, Options.__optional_keys__)
    coordinator = options.get("coordinator")
    check_coordinator(coordinator)
    minimum, granularity = choose_sizes(
        options.get("minimum"), options.get("granularity"), straggler, min_trainable, coordinator
    )
    settings = Settings(
        total, options.get("mode", "balanced"), options.get("shares"), options.get("policy"),
        options.get("predictor"), minimum, options.get("maximum"), micro_batches, granularity,
        straggler, options.get("warm_up", 2), options.get("watchdog"),
    )  # fmt: skip
    # Before all other checks: a worker that raised alone would leave the others waiting.
    job = _agreed_job(coordinator, options.get("name"))
    require_agreement({**settings.agreed(), **(common or {}), **job}, collective)
    if coordinator is not None:
        settings = _with_job(settings, coordinator, collective.num_workers, min_trainable)
    check_sizes(settings.total, settings.minimum, collective.num_workers)
    settings.check_watchdog()
    if check is not None:
        check()
    settings.check_retries(min_trainable)
    return settings


def make_boundary(
    settings: Settings,
    policy: Policy[object],
    members: Sequence[str],
    coordinator: JobCoordinator | None,
    collective: Collective,
    away: Away,
    delay: int,
    log: Log | None,
    source: str,
    job: str,
) -> Boundary:
    """Return the boundary of these members; worker 0 writes the run log, if there is one.

    All workers must call it. `away` makes a context that pauses this worker's timer.
    """
    worker = collective.worker
    planner = settings.make_planner(members, policy, delay)
    job = job if coordinator is None else coordinator.job
    header = header_of(planner, source, settings.mode, settings.predictor or "none", job)
    recorder = _opened(lambda: Recorder(log, header) if log else None, collective)
    totals = RunTotals(header, recorder)
    if coordinator is None:
        return LocalPlanning(planner, totals)
    cap = None if settings.micro_batches else settings.limit_of(worker, len(members))
    return ManagerPlanning(
        coordinator, planner.workers, planner.plan, policy, totals, collective, away, delay, cap
    )


def _opened(make: Callable[[], Recorder | None], collective: Collective) -> Recorder | None:
    """Return the recorder of worker 0; raises on all workers if it cannot be made.

    If only worker 0 raised, the others would wait for it.
    """
    recorder, problem = None, None
    if collective.worker == 0:
        try:
            recorder = make()
        except (OSError, EvenstepError) as error:
            problem = str(error)
    problem = gather_values(collective, problem)[0]
    if problem is not None:
        raise InvalidSetting(f"log must be what worker 0 can write to, got {problem}")
    return recorder


def check_coordinator(coordinator: object) -> None:
    """Raise InvalidSetting unless this is a coordinator that a worker can use, or None."""
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


def _agreed_job(coordinator: JobCoordinator | None, name: str | None) -> dict[str, Any]:
    """Return the settings of the job that must be the same on all workers."""
    if coordinator is None:
        return {"job of the coordinator": None}
    how = "blocking" if coordinator.blocking else "non-blocking"
    return {
        "job of the coordinator": f"{coordinator.job} ({how}, {_job_settings(coordinator)})",
        "name in the job": name in (None, coordinator.worker),
    }


def _with_job(
    settings: Settings, coordinator: JobCoordinator, num_workers: int, min_trainable: int
) -> Settings:
    """Return the settings with those of the job; raises if they contradict each other."""
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
    _require_job(coordinator, "workers", job.workers, num_workers)
    _require_job(coordinator, "total", job.total, settings.total)
    _require_job(coordinator, "minimum", job.minimum, settings.minimum)
    _require_job(coordinator, "granularity", job.granularity, settings.granularity)
    if settings.policy is not None:
        _require_job(coordinator, "policy", job.policy, name_of(settings.policy))
    if settings.predictor is not None:
        _require_job(coordinator, "predictor", job.predictor, settings.predictor)
    if 0 < job.minimum < min_trainable:
        raise InvalidSetting(
            f"minimum of job {coordinator.job} must be at least {min_trainable}, as the model has "
            f"BatchNorm, got {job.minimum}: evenstep.connect(..., minimum={min_trainable})"
        )
    return replace(settings, policy=job.policy, predictor=job.predictor)


def _name_in(coordinator: JobCoordinator | None, name: str | None) -> str | None:
    """Return the name of this worker, which is its name in the job if there is one."""
    if coordinator is None:
        return name
    if name is not None:
        _require_job(coordinator, "name", coordinator.worker, name)
    return coordinator.worker


def _require_job(coordinator: JobCoordinator, what: str, theirs: Any, ours: Any) -> None:
    if theirs != ours:
        raise InvalidSetting(
            f"{what} must be that of job {coordinator.job}, {theirs!r}, got {ours!r}"
        )


def _job_settings(coordinator: JobCoordinator) -> str:
    names = ("workers", "total", "policy", "predictor", "minimum", "granularity")
    return ", ".join(f"{name} {getattr(coordinator.settings, name)}" for name in names)
