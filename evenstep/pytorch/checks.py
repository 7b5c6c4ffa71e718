"""Checks of a model and of the arguments of a balancer, before the first iteration."""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from evenstep.errors import InvalidSetting
from evenstep.pytorch.compatibility import without_compiler

MARK = "_evenstep_balancer"
"""The attribute that marks a model with a balancer."""


_FOREIGN = {
    "deepspeed": "a DeepSpeed engine, which exchanges gradients itself",
    "megatron": "a model of Megatron, which makes batches and exchanges gradients itself",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "a model of FSDP1, which averages the "
    "gradients of its shards itself",
    "torch.distributed.pipelining": "a stage of a pipeline, whose workers share each batch",
}
"""Packages whose models cannot be balanced, and why."""

_INSTEAD = (
    "wrap the model in DistributedDataParallel, or if it is too large for one worker, shard it "
    "with torch.distributed.fsdp.fully_shard (FSDP2) and take a ShardedBalancer"
)


def check_foreign(model: object) -> None:
    """Raise InvalidSetting for a model of another engine."""
    for one in type(without_compiler(model)).__mro__:
        for package, got in _FOREIGN.items():
            if f"{one.__module__}.".startswith(f"{package}."):
                raise InvalidSetting(
                    "every worker must have batches of its own and gradients that can be weighed, "
                    f"got {got}: {_INSTEAD}"
                )


def check_parallelism(model: object) -> None:
    """Raise InvalidSetting for a model of another engine, or one that workers hold in parts.

    A model that `fully_shard` was called with passes.
    """
    check_foreign(model)
    if isinstance(model, torch.nn.Module) and not is_fully_sharded(without_compiler(model)):
        for name, parameter in model.named_parameters():
            if hasattr(parameter, "device_mesh"):
                raise InvalidSetting(
                    "every worker must have all parameters, got a part of "
                    f"{name} on {parameter.device_mesh} (tensor parallelism is not supported): "
                    f"{_INSTEAD}"
                )


def check_process_group() -> None:
    """Raise InvalidSetting unless there is a process group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise InvalidSetting(
            "a process group must be there first: start the script with torchrun and call "
            "torch.distributed.init_process_group()"
        )


def check_model(model: object) -> None:
    """Raise InvalidSetting unless the model can have a balancer."""
    check_process_group()
    check_parallelism(model)
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
            "the model must not have a communication hook yet: pass yours as "
            "Balancer(..., comm_hook=(state, hook))"
        )


def check_sharded_model(model: object) -> None:
    """Raise InvalidSetting unless the model can have a sharded balancer."""
    check_process_group()
    check_foreign(model)
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
    """Raise InvalidSetting unless this is a communication hook with its state, or None."""
    if hook is None:
        return
    if not (isinstance(hook, tuple) and len(hook) == 2 and callable(hook[1])):
        raise InvalidSetting(f"comm_hook must be (state, hook), got {hook!r}")


def is_fully_sharded(model: object) -> bool:
    """Whether `fully_shard` was called with this module itself."""
    # If it is not loaded, nothing is sharded; and loading it takes a while.
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    return isinstance(model, getattr(fsdp, "FSDPModule", ()))


def mesh_of(model: torch.nn.Module) -> DeviceMesh:
    """Return the mesh that a model is sharded over, which must have one dimension."""
    # Parameters that the user had `fully_shard` ignore are ordinary ones.
    parameters = {
        name: parameter
        for name, parameter in model.named_parameters() if hasattr(parameter, "device_mesh")
    }  # fmt: skip
    if not parameters:
        raise InvalidSetting("the model must have sharded parameters, got none")
    meshes: dict[DeviceMesh, str] = {}
    for name, parameter in parameters.items():
        meshes.setdefault(parameter.device_mesh, name)
        if parameter.is_meta:
            raise InvalidSetting(
                f"parameters must be on a device before a balancer is made, got {name} on meta: "
                "call model.to_empty() and initialise them first"
            )
    (mesh, first), *others = meshes.items()
    if others:
        raise InvalidSetting(
            f"all parameters must be sharded over the same workers, got {first} on {mesh} and "
            f"{others[0][1]} on {others[0][0]}"
        )
    if mesh.ndim != 1:
        raise InvalidSetting(
            "the model must be sharded over a mesh of one dimension, in which every worker has "
            f"batches of its own, got {mesh.ndim} dimensions (HSDP and tensor parallelism are "
            "not supported)"
        )
    return mesh


def can_be_wrapped(model: object) -> bool:
    """Whether this is no model, or one that may still be wrapped in DistributedDataParallel."""
    inner = without_compiler(model)
    is_module = isinstance(inner, torch.nn.Module) and not is_fully_sharded(inner)
    return model is None or (is_module and not isinstance(inner, DistributedDataParallel))


def wrapper_of(model: object) -> DistributedDataParallel:
    """Return the DDP model that wraps this one; raise InvalidSetting unless there is exactly one.

    It is searched for among all objects, once, as a wrapped model does not know its wrapper.
    """
    if model is None:
        raise InvalidSetting(
            "a balancer must have its model before its first iteration, got none: balancer.bind("
            "model), with the model that DistributedDataParallel(net) or accelerator.prepare(net) "
            "returns"
        )
    check_process_group()
    inner = without_compiler(model)
    found = [
        one
        for one in gc.get_objects()
        if issubclass(type(one), DistributedDataParallel)
        and without_compiler(one.__dict__["_modules"].get("module")) is inner
    ]
    if len(found) == 1:
        wrapper: DistributedDataParallel = found[0]
        return wrapper
    got = f"{len(found)} models that wrap it" if found else type(inner).__name__
    raise InvalidSetting(
        "the model must be wrapped in DistributedDataParallel before the first iteration, by "
        "DistributedDataParallel(net), accelerator.prepare(net) or the strategy of a trainer, "
        f"got {got}"
    )
