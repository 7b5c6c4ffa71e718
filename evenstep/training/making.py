"""Making the boundary of a training: with plans of its own, or with those of a coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evenstep.core.coordinator import JobCoordinator
from evenstep.core.policy import Policy, even_sizes
from evenstep.errors import EvenstepError, InvalidSetting
from evenstep.training.account import Account
from evenstep.training.boundary import Boundary
from evenstep.training.coordinated_boundary import Away, CoordinatedBoundary
from evenstep.training.meeting import Meeting, tell
from evenstep.training.own_boundary import OwnBoundary
from evenstep.training.recording import Log, Recorder, make_recorder
from evenstep.training.settings import Settings


def make_boundary(
    settings: Settings,
    policy: Policy[object],
    members: Sequence[str],
    coordinator: JobCoordinator | None,
    meeting: Meeting,
    away: Away,
    delay: int,
    log: Log | None,
    source: str,
    job: str = "ddp",
) -> Boundary:
    """Return the boundary of these members; worker 0 writes the run log, if there is to be one.

    All workers must call it. `away` makes a context that is not this worker's own work.
    """
    worker = meeting.worker
    core = settings.make_core(members, policy, delay)
    header = source, settings.mode, settings.predictor or "none"
    job = job if coordinator is None else coordinator.job
    recorder = _opened(lambda: make_recorder(log, core, *header, job), meeting)
    account = Account(even_sizes(settings.total, core.limits), recorder)
    if coordinator is None:
        return OwnBoundary(core, account)
    cap = None if settings.micro_batches else settings.limit_of(worker, len(members))
    start = core.plan
    return CoordinatedBoundary(
        coordinator, core.workers, start, policy, account, meeting, away, delay, cap
    )


def _opened(make: Callable[[], Recorder | None], meeting: Meeting) -> Recorder | None:
    """Return the recorder of worker 0; raises on all workers where it cannot be made.

    If worker 0 were the only one to stop, the others would wait for it.
    """
    recorder, problem = None, None
    if meeting.worker == 0:
        try:
            recorder = make()
        except (OSError, EvenstepError) as error:
            problem = str(error)
    problem = tell(meeting, problem)[0]
    if problem is not None:
        raise InvalidSetting(f"log must be what worker 0 can write to, got {problem}")
    return recorder
