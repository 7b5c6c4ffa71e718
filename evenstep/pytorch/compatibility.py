"""Features of models and of torch that conflict with changing batch sizes.

`torch.compile` assumes that sizes do not change. So, before each forward pass, the first dimension
of all inputs with one entry per sample is marked as dynamic. A batch of one sample is compiled
separately, once.

DDP broadcasts buffers, such as BatchNorm's running statistics, from worker 0 in every forward pass,
and so waits for the slowest worker, which would spoil the measured time. The balancer turns this
off. Each worker keeps its own statistics; they are averaged, weighted by batch sizes, when needed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from evenstep.errors import InvalidSetting
from evenstep.pytorch.collective import InflightTensors


class Hook:
    """A hook of a module that `torch.compile` does not look into.

    Copies of the module, in memory or in a file, have a hook that does nothing in its place, one
    of the standard library: they belong to no balancer, and load without evenstep.
    """

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = torch.compiler.disable(call)

    def __call__(self, *args: Any) -> None:
        self._call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


def check_normalisation(model: nn.Module, mode: str) -> None:
    """Raise InvalidSetting for SyncBatchNorm, where batch sizes or times matter."""
    if mode == "off" or not any(isinstance(m, nn.SyncBatchNorm) for m in model.modules()):
        return
    raise InvalidSetting(
        f"the model must not have SyncBatchNorm in mode {mode!r}: it waits for the other workers "
        "in the forward pass, so that no worker's own time can be measured, and its gradients are "
        "right for equal batches only; use BatchNorm (statistics are averaged by batch sizes), "
        "GroupNorm, or mode='off'"
    )


def warn_of_new_sizes(model: nn.Module, granularity: int, device: torch.device) -> None:
    """Warn where every new batch size costs time, and there may be many."""
    if granularity > 1:
        return
    advice = "Balancer(..., granularity=8) has fewer sizes to come across"
    if device.type == "cuda" and torch.backends.cudnn.benchmark:
        warnings.warn(
            "torch.backends.cudnn.benchmark is on, which tries out algorithms again for every new "
            f"batch size: turn it off, or {advice}",
            stacklevel=3,
        )
    if any(_records_graphs(module) for module in model.modules()):
        warnings.warn(
            "the model is compiled to CUDA graphs, of which every new batch size needs one of its "
            f"own: {advice}",
            stacklevel=3,
        )


def _records_graphs(module: nn.Module) -> bool:
    """Whether it was compiled with mode='reduce-overhead' or an equivalent option."""
    config = getattr(module, "get_compiler_config", None)
    return bool(config is not None and (config() or {}).get("triton.cudagraphs"))


def without_compiler(model: Any) -> Any:
    """Return the model inside what `torch.compile` returned, or the model itself."""
    return getattr(model, "_orig_mod", model)


def mark_batches(model: DistributedDataParallel, batch_size: Callable[[], int]) -> None:
    """Mark the number of samples as dynamic in the inputs of every forward pass."""
    mark = torch._dynamo.maybe_mark_dynamic

    def on_forward(module: torch.nn.Module, inputs: Any, named: Any) -> None:
        size = batch_size()
        for value in tree_leaves((inputs, named)):
            if isinstance(value, torch.Tensor) and value.dim() and len(value) == size:
                mark(value, 0)

    model.register_forward_pre_hook(Hook(on_forward), with_kwargs=True)


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
