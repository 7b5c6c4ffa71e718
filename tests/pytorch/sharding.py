"""What the tests of the sharded balancer train: the small net, sharded layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from evenstep.pytorch import ShardedBalancer
from tests.pytorch.setup import net


def shard(model: nn.Module, **settings: Any) -> nn.Module:
    """Shard a model layer by layer, as one does."""
    # Loaded here, as it takes a while: the process of the tests itself does without.
    from torch.distributed.fsdp import fully_shard

    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, **settings)
    fully_shard(model, **settings)
    return model


@contextmanager
def sharded(
    total: int, model: nn.Module | None = None, **settings: Any
) -> Iterator[tuple[ShardedBalancer, Any]]:
    """Balance a sharded model, a small net by default, and close the balancer at the end."""
    made = shard(net() if model is None else model)
    balancer = ShardedBalancer(made, total, **{"summary": False, **settings})
    try:
        yield balancer, made
    finally:
        balancer.close()


def whole(tensors: Iterable[Any]) -> torch.Tensor:
    """Return sharded tensors in one piece; all workers must ask for it."""
    return torch.cat([tensor.full_tensor().flatten() for tensor in tensors])


def whole_gradients(model: nn.Module) -> torch.Tensor:
    return whole(p.grad for p in model.parameters())
