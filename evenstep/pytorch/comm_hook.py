"""Hooking: how a DDP model comes to have a gradient exchange of ours, and keeps it.

DDP keeps its communication hook on the C++ side, where no garbage collector looks: a hook that led
back to its model would keep both in memory for good. So the hook finds its exchange weakly, and it
is the model itself, in plain sight, that keeps it alive.
"""

# Annotations stay objects in this file: DDP inspects those of a hook.
import weakref
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from evenstep.pytorch.checks import MARK


class Exchanging(Protocol):
    """Exchanges one bucket of gradients after the other."""

    def hook(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]: ...


class _Kept:
    """Keeps an exchange alive with its model; a copy of the model has no hook, and no mark."""

    def __init__(self, exchanging: Exchanging) -> None:
        self._exchanging = exchanging

    def __reduce__(self) -> tuple[type[bool], tuple[()]]:
        return bool, ()


def register(model: DistributedDataParallel, exchanging: Exchanging) -> None:
    """Let all gradients of a model go through an exchange, for as long as the model lives."""
    found = weakref.ref(exchanging)

    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        exchanging = found()
        assert exchanging is not None
        return exchanging.hook(bucket)

    model.register_comm_hook(None, hook)
    setattr(model, MARK, _Kept(exchanging))
