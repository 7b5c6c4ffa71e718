"""The loop of a sharded model: its workers exchange no reports, and measure no times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from evenstep.measure.timer import HostTimer
from evenstep.pytorch.buffers import has_batch_norm
from evenstep.pytorch.calibrated_plans import CalibratedPlans
from evenstep.pytorch.checks import check_sharded_model, mesh_of
from evenstep.pytorch.collective import ProcessGroupCollective, collective_of
from evenstep.training.collective import require_agreement
from evenstep.training.loop import Loop
from evenstep.training.reporter import Reporter
from evenstep.training.settings import Settings, SizeOptions, check_names, check_sizes

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def make_sharded_loop(
    model: torch.nn.Module, total: int, granularity: int, options: SizeOptions
) -> tuple[Loop, CalibratedPlans, ProcessGroupCollective, DeviceMesh]:
    """Return the loop of this worker, its plans, and its workers; all workers must call it."""
    check_names(options, SizeOptions.__optional_keys__)
    check_sharded_model(model)
    mesh = mesh_of(model)
    collective = collective_of(mesh.get_group())
    min_trainable = 2 if has_batch_norm(model) else 1
    minimum = options.get("minimum")
    settings = Settings(
        total, "static", options.get("shares"), None, None,
        min_trainable if minimum is None else minimum, options.get("maximum"), False, granularity,
        "advise", 0,
    )  # fmt: skip
    # Before anything else is checked: a worker that stops here alone leaves the others waiting.
    require_agreement(settings.agreed(), collective)
    check_sizes(total, settings.minimum, collective.num_workers)
    plans = CalibratedPlans(settings, collective.num_workers)
    timer = HostTimer()
    loop = Loop(
        collective, settings, plans, timer, Reporter(None, timer, 0, reads=False),
        min_trainable=min_trainable,
        summary=options.get("summary", True),
    )  # fmt: skip
    return loop, plans, collective, mesh
