"""Checks before the first iteration: what a balancer needs of a model and of its arguments."""

from __future__ import annotations

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from evenstep.errors import InvalidSetting
from evenstep.pytorch.sharded_model import is_fully_sharded

MARK = "_evenstep_balancer"
"""The attribute that a model with a balancer has."""


def check_process_group() -> None:
    """Raise InvalidSetting unless the workers can talk to each other."""
    if not (dist.is_available() and dist.is_initialized()):
        raise InvalidSetting(
            "a process group must be there first: start the script with torchrun and call "
            "torch.distributed.init_process_group()"
        )


def check_model(model: object) -> None:
    """Raise InvalidSetting unless the model can have a balancer."""
    check_process_group()
    if is_fully_sharded(model):
        raise InvalidSetting(
            "the model must be wrapped in DistributedDataParallel, got one with fully_shard: "
            "that goes into a ShardedBalancer"
        )
    if not isinstance(model, DistributedDataParallel):
        raise InvalidSetting(
            f"the model must be wrapped in DistributedDataParallel, got {type(model).__name__}"
        )
    if getattr(model, MARK, False):
        raise InvalidSetting("a model can have one Balancer, and this one has one already")
    if getattr(model, "_comm_hooks", None):
        raise InvalidSetting(
            "the model must not have a communication hook yet: hand yours over as "
            "Balancer(..., comm_hook=(state, hook))"
        )


def check_sharded_model(model: object) -> None:
    """Raise InvalidSetting unless the model can have a sharded balancer."""
    check_process_group()
    if isinstance(model, DistributedDataParallel):
        raise InvalidSetting(
            "the model must be sharded with torch.distributed.fsdp.fully_shard(model), got one "
            "wrapped in DistributedDataParallel: that goes into a Balancer"
        )
    if not is_fully_sharded(model):
        raise InvalidSetting(
            "the model must be sharded with torch.distributed.fsdp.fully_shard(model), the whole "
            f"of it after its layers, got {type(model).__name__}"
        )
    if getattr(model, MARK, False):
        raise InvalidSetting("a model can have one ShardedBalancer, and this one has one already")


def check_hook(hook: object) -> None:
    """Raise InvalidSetting unless it is a communication hook with its state, or none."""
    if hook is None:
        return
    if not (isinstance(hook, tuple) and len(hook) == 2 and callable(hook[1])):
        raise InvalidSetting(f"comm_hook must be (state, hook), got {hook!r}")
