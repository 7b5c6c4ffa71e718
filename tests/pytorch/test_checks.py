"""Models that cannot be balanced are refused, with what works instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from evenstep.errors import InvalidSetting
from evenstep.pytorch import Balancer
from evenstep.pytorch.checks import check_parallelism
from tests.pytorch.setup import net

INSTEAD = "or if it is too large for one worker, shard it with torch.distributed.fsdp.fully_shard"


def model_of(module: str) -> Any:
    """Return a model whose class says that it comes from this module."""
    engine = type("Engine", (nn.Module,), {"__module__": module})
    # Scripts may have a class of their own, derived from the engine.
    return type("Mine", (engine,), {})()


@pytest.mark.parametrize(
    ("module", "got"),
    [
        ("deepspeed.runtime.engine", "got a DeepSpeed engine"),
        ("megatron.core.distributed", "got a model of Megatron"),
        ("torch.distributed.pipelining.stage", "got a stage of a pipeline"),
    ],
)
def test_models_of_other_engines_are_refused_at_once(module, got):
    for door in (check_parallelism, lambda model: Balancer(model, total=8)):
        with pytest.raises(InvalidSetting, match=got) as refused:
            door(model_of(module))
        assert INSTEAD in str(refused.value)


def test_other_packages_with_a_similar_name_are_not_refused():
    check_parallelism(model_of("deepspeed_tools"))


def balance_tensor_parallel() -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    Balancer(parallelize_module(net(), mesh, {"0": ColwiseParallel()}), total=8)


def balance_fsdp1() -> None:
    Balancer(FullyShardedDataParallel(net(), device_id=torch.device("cpu")), total=8)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("job", "got"),
    [
        (balance_tensor_parallel, "got a part of 0.weight on DeviceMesh"),
        (balance_fsdp1, "got a model of FSDP1"),
    ],
)
def test_models_that_workers_hold_in_parts_are_refused(workers, job, got):
    for failure in workers.failures(job):
        assert failure.kind == "InvalidSetting", failure
        assert got in failure.message
        assert INSTEAD in failure.message
