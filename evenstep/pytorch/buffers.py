"""Buffers: BatchNorm's running statistics under unequal batches.

DDP broadcasts buffers from worker 0 in every forward pass, and so waits for the slowest worker,
which would spoil the measured time. The balancer turns this off. Each worker keeps its own
statistics; they are averaged, weighted by batch sizes, when they are needed.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from evenstep.pytorch.inflight import InflightTensors


def has_batch_norm(model: torch.nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def stop_broadcasting(model: DistributedDataParallel) -> None:
    """Turn off the broadcast of buffers in forward passes."""
    # Torch before 2.13 has only the second name; the newer ones keep it as an alias.
    name = "forward_sync_buffers" if hasattr(model, "forward_sync_buffers") else "broadcast_buffers"
    setattr(model, name, False)


@torch.no_grad()
def average_buffers(
    model: torch.nn.Module, weight: float, group: dist.ProcessGroup, inflight: InflightTensors
) -> None:
    """Replace every floating-point buffer by its weighted mean over the workers."""
    for buffer in model.buffers():
        if buffer.is_floating_point():
            weighted = buffer * weight
            dist.all_reduce(inflight.watch(weighted), group=group)
            buffer.copy_(weighted)
