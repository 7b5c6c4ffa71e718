"""Compatibility: what in a model or in torch's settings does not go with changing batch sizes."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from evenstep.errors import InvalidSetting


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
            "torch.backends.cudnn.benchmark is on, which tries out algorithms anew for every new "
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
    """Whether it was compiled with mode='reduce-overhead' or an option to the same end."""
    config = getattr(module, "get_compiler_config", None)
    return bool(config is not None and (config() or {}).get("triton.cudagraphs"))
