"""Registers a gradient exchange as the communication hook of a DDP model.

DDP keeps its hook in C++, where the garbage collector does not see it: a hook with a reference to
its model would keep both in memory for ever. So the hook has a weak reference to the exchange, and
an attribute of the model keeps the exchange alive.
"""

# Annotations stay objects in this file: DDP inspects those of a hook.
import weakref
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from evenstep.pytorch.checks import MARK


class Exchanging(Protocol):
    """Exchanges the gradients of a model, one bucket after the other."""

    def hook(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]: ...


class _Kept:
    """Keeps an exchange alive with its model; a copy of the model has no hook, and no mark."""

    def __init__(self, exchanging: Exchanging) -> None:
        self._exchanging = exchanging

    def __reduce__(self) -> tuple[type[bool], tuple[()]]:
        return bool, ()


class _Found:
    """Finds an exchange as long as its model is there; in a copy of the model there is none."""

    def __init__(self, exchanging: Exchanging) -> None:
        self.exchanging = weakref.ref(exchanging)

    def __reduce__(self) -> tuple[type[bool], tuple[()]]:
        return bool, ()


def _exchange(found: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    exchanging = found.exchanging()
    assert exchanging is not None
    exchanged: torch.futures.Future[torch.Tensor] = exchanging.hook(bucket)
    return exchanged


def register(model: DistributedDataParallel, exchanging: Exchanging) -> None:
    """Send all gradients of a model through an exchange, for the lifetime of the model."""
    model.register_comm_hook(_Found(exchanging), _exchange)
    setattr(model, MARK, _Kept(exchanging))
