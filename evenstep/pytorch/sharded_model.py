"""What can be asked of a model with `fully_shard` (FSDP2, torch 2.6 and later)."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from evenstep.errors import InvalidSetting


def is_fully_sharded(model: object) -> bool:
    """Whether `fully_shard` was called with this very module."""
    # Where nobody has loaded it, nothing can be sharded; and loading it takes a while.
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    return isinstance(model, getattr(fsdp, "FSDPModule", ()))


def mesh_of(model: torch.nn.Module) -> DeviceMesh:
    """Return the mesh of the workers that a model is sharded over, which must be one row."""
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
