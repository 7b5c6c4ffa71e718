"""Settling: what all workers must agree on, and what must fit, before a balancer is made."""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from evenstep.core.coordinator import JobCoordinator
from evenstep.pytorch.checks import check_hook
from evenstep.pytorch.compatibility import check_normalisation
from evenstep.pytorch.exchange import UserHook
from evenstep.pytorch.straggler import Checkpoint, check_straggler
from evenstep.training.job import agreed_job, of_job
from evenstep.training.meeting import Meeting, require_agreement
from evenstep.training.settings import Settings
from evenstep.training.sizes import check_sizes


def settle(
    settings: Settings,
    model: DistributedDataParallel,
    fewest: int,
    comm_hook: UserHook | None,
    checkpoint: Checkpoint | None,
    coordinator: JobCoordinator | None,
    name: str | None,
    meeting: Meeting,
) -> Settings:
    """Return the settings of all workers, with those of a job; raise where something is wrong."""
    # Before anything else is checked: who stops here alone leaves the others waiting.
    beside = {
        "device": next(model.parameters()).device.type,
        "comm_hook": None if comm_hook is None else isinstance(comm_hook, tuple),
        "checkpoint": checkpoint is not None,
    }
    require_agreement(settings.agreed() | beside | agreed_job(coordinator, name), meeting)
    num_workers = meeting.num_workers
    if coordinator is not None:
        settings = of_job(settings, coordinator, num_workers, fewest)
    check_sizes(settings.total, settings.minimum, num_workers)
    check_hook(comm_hook)
    check_normalisation(model, settings.mode)
    check_straggler(settings.straggler, checkpoint)
    settings.check_retries(fewest)
    return settings
