"""Makes the loop of a DDP model, from the model, its device and its process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evenstep.pytorch.checks import check_hook, check_model
from evenstep.pytorch.collective import ProcessGroupCollective, collective_of, store_of_group
from evenstep.pytorch.compatibility import (
    check_normalisation,
    has_batch_norm,
    warn_of_new_sizes,
    without_compiler,
)
from evenstep.pytorch.exchange import UserHook
from evenstep.pytorch.loss_check import check_loss
from evenstep.pytorch.straggler import Checkpoint, Restart, check_straggler
from evenstep.pytorch.timers import make_timer
from evenstep.training.loop import Loop
from evenstep.training.loop_setup import make_loop
from evenstep.training.report_rows import ExtraColumn

if TYPE_CHECKING:
    from evenstep.training.settings import Options


def make_ddp_loop(
    given: Any,
    total: int,
    loss: str | None,
    micro_batches: bool,
    straggler: str,
    checkpoint: Checkpoint | None,
    comm_hook: UserHook | None,
    options: Options,
) -> tuple[Loop, ProcessGroupCollective]:
    """Return the loop and the collective of this worker; all workers must call it."""
    model = without_compiler(given)
    check_model(model)
    device = next(model.parameters()).device
    collective = collective_of(model.process_group)
    mode = options.get("mode", "balanced")

    def check() -> None:
        check_loss(loss)
        check_hook(comm_hook)
        check_normalisation(model, mode)
        check_straggler(straggler, checkpoint)

    options["timer"] = options.get("timer") or make_timer(device)
    loop = make_loop(
        collective, total, framework="ddp", device=device.type, device_name=_name_of(device),
        min_trainable=2 if has_batch_norm(model) else 1, lag=1 if device.type == "cuda" else 0,
        micro_batches=micro_batches, straggler=straggler,
        # A static graph rebuilds its buckets one iteration later, which waits for the others.
        rebuilds=int(model.static_graph),
        common={
            "loss": loss,
            "device": device.type,
            "comm_hook": None if comm_hook is None else isinstance(comm_hook, tuple),
            "checkpoint": checkpoint is not None,
        },
        check=check, column=ExtraColumn(), fetches_ahead=True, store=store_of_group,
        restart=None if checkpoint is None else Restart(checkpoint, collective).without,
        **options,
    )  # fmt: skip
    collective.explained = loop.explained
    if mode == "balanced":
        warn_of_new_sizes(given, loop.settings.granularity, device)
    return loop, collective


def _name_of(device: torch.device) -> str:
    """Return the name of a device, by which its worker is identified after a restart."""
    if device.type != "cuda":
        return device.type
    return f"cuda-{torch.cuda.get_device_properties(device).uuid}"
