"""Makes the loop of a sharded model, whose workers exchange no reports and measure no times."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import torch

from evenstep.errors import DivergedPlans
from evenstep.measure.timer import HostTimer
from evenstep.pytorch.buffers import has_batch_norm
from evenstep.pytorch.calibrated_plans import CalibratedPlans
from evenstep.pytorch.checks import check_sharded_model, mesh_of
from evenstep.pytorch.collective import ProcessGroupCollective, collective_of
from evenstep.training.collective import Collective, require_agreement
from evenstep.training.iteration import Iteration
from evenstep.training.loop import Loop
from evenstep.training.report_rows import digest
from evenstep.training.reporter import Reporter
from evenstep.training.settings import Settings, SizeOptions, check_names, check_sizes

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def make_sharded_loop(
    model: torch.nn.Module, total: int, granularity: int, options: SizeOptions
) -> tuple[Loop, CalibratedPlans, ProcessGroupCollective, DeviceMesh]:
    """Return the loop of this worker, its plans, and its collective; all workers must call it."""
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
    # Before all other checks: a worker that raised alone would leave the others waiting.
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


class Trail:
    """A hash of all iterations, for workers whose gradient exchange carries no digests."""

    def __init__(self) -> None:
        self._hash = 0

    def add(self, iteration: Iteration) -> None:
        """Add an iteration that was trained on."""
        digested = digest(iteration.plan, iteration.position).to_bytes(4, "little")
        self._hash = zlib.crc32(digested, self._hash)

    def check(self, collective: Collective) -> None:
        """Raise DivergedPlans, on all workers, unless they all trained on the same iterations."""
        hashes = collective.everybody(np.array([self._hash], dtype=np.float64))[:, 0].tolist()
        for worker, theirs in enumerate(hashes):
            if theirs != hashes[0]:
                raise DivergedPlans(
                    "all workers must use the same plan for the same samples, but worker "
                    f"{worker} and worker 0 did not; do all workers go through the same epochs, "
                    "with the same versions of evenstep and numpy?"
                )
