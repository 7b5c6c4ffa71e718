"""Making the boundary of a training: with plans of its own, or with those of a coordinator."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from evenstep.coordination import JobCoordinator
from evenstep.policies.policy import Policy, even_sizes
from evenstep.pytorch.account import Account
from evenstep.pytorch.boundary import Boundary
from evenstep.pytorch.coordinated_boundary import Away, CoordinatedBoundary
from evenstep.pytorch.handed import Handed
from evenstep.pytorch.own_boundary import OwnBoundary
from evenstep.pytorch.recording import Log, make_recorder
from evenstep.pytorch.settings import Settings


def make_boundary(
    settings: Settings,
    policy: Policy[object],
    members: Sequence[str],
    coordinator: JobCoordinator | None,
    group: dist.ProcessGroup,
    handed: Handed,
    away: Away,
    delay: int,
    log: Log | None,
    source: str,
) -> Boundary:
    """Return the boundary of these members; worker 0 writes the run log, if there is to be one.

    All workers must call it. `away` makes a context that is not this worker's own work.
    """
    worker = dist.get_rank(group)
    core = settings.make_core(members, policy, delay)
    recorder = make_recorder(
        log if worker == 0 else None,
        core,
        source,
        settings.mode,
        settings.predictor or "none",
        "ddp" if coordinator is None else coordinator.job,
    )
    account = Account(even_sizes(settings.total, core.limits), recorder)
    if coordinator is None:
        return OwnBoundary(core, account)
    cap = None if settings.micro_batches else settings.limit_of(worker, len(members))
    start = core.plan
    return CoordinatedBoundary(
        coordinator, core.workers, start, policy, account, group, handed, away, delay, cap
    )
