"""The parameter server: holds the parameters, averages pushed gradients, and applies them.

The paper's workflow (Alg. 3): workers pull w, compute a gradient on their x_i samples, and push
n x_i / X times it; the server averages and makes the update. Tensors are spread over shards, each
with its own optimizer; optimizers work element by element, so any number of shards gives the same
parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from evenstep.simulator.engine.optimizers import Optimizer, Sgd, per_push
from evenstep.simulator.engine.sharding import ShardLayout

Tensors = list[torch.Tensor]
S = TypeVar("S")


class Shard:
    """Some of the tensors, with the sum of gradients pushed since the last update.

    `average`: whether an update divides by the sum of weights, so that it is a weighted mean. If
    the samples behind the pushed gradients add up to X, that sum is the number of workers.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], optimizer: Optimizer, average: bool = True
    ) -> None:
        self._tensors = [tensor.detach().clone() for tensor in tensors]
        self._optimizer = optimizer.make(self._tensors) if self._tensors else None
        self._average = average
        self._sums = [torch.zeros_like(tensor) for tensor in self._tensors]
        self._weight = 0.0
        self._snapshot: Tensors | None = None

    def pull(self) -> Tensors:
        """Return a copy of the tensors that later updates do not change.

        All pulls between two updates share one copy.
        """
        if self._snapshot is None:
            self._snapshot = [tensor.clone() for tensor in self._tensors]
        return self._snapshot

    def push(self, gradients: Sequence[torch.Tensor], weight: float) -> None:
        """Add a gradient to the next update."""
        if self._tensors:
            torch._foreach_add_(self._sums, list(gradients), alpha=weight)
        self._weight += weight

    def update(self) -> None:
        """Apply the pushed gradients, if any."""
        if self._optimizer is None or self._weight == 0.0:
            return
        if self._average:
            torch._foreach_div_(self._sums, self._weight)
        for tensor, gradient in zip(self._tensors, self._sums, strict=True):
            tensor.grad = gradient
        self._optimizer.step()
        self._reset()

    def state(self) -> dict[str, Any]:
        """Return the state after the last update, from which another shard can continue."""
        optimizer = self._optimizer.state_dict() if self._optimizer else {}
        return copy.deepcopy({"tensors": self._tensors, "optimizer": optimizer})

    def load(self, state: dict[str, Any]) -> None:
        """Continue from the state of a shard with the same tensors; drop pushed gradients."""
        for tensor, saved in zip(self._tensors, state["tensors"], strict=True):
            tensor.data.copy_(saved)
        if self._optimizer is not None:
            self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self._reset()

    def _reset(self) -> None:
        torch._foreach_zero_(self._sums)
        self._weight = 0.0
        self._snapshot = None


def make_shards(
    make: Callable[[Tensors, Optimizer, bool], S],
    layout: ShardLayout,
    tensors: Sequence[torch.Tensor],
    optimizer: Optimizer,
    num_workers: int,
    synchronous: bool,
) -> list[S]:
    """Make the shards of a layout, here or elsewhere: `make` takes the arguments of `Shard`.

    Buffers (the running statistics of BatchNorm) are treated as parameters whose gradient is the
    decrease on the worker, with a learning rate of 1. Unless the scheme is `synchronous`, each of n
    pushes is an update at 1/n of the learning rate.
    """
    averaging: Optimizer = Sgd(learning_rate=1.0)
    if not synchronous:
        optimizer, averaging = (per_push(o, num_workers) for o in (optimizer, averaging))
    parts = layout.split(tensors)
    optimizers = [optimizer] * len(parts)
    if layout.has_buffers:
        optimizers[-1] = averaging
    return [make(part, o, synchronous) for part, o in zip(parts, optimizers, strict=True)]


class ParameterServer:
    """The parameters and buffers of a model, on shards in this process."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        buffers: Sequence[torch.Tensor],
        optimizer: Optimizer,
        num_workers: int,
        synchronous: bool = True,
        num_shards: int = 1,
    ) -> None:
        """`num_workers` is n: the workers that count."""
        self._layout = ShardLayout.of([p.numel() for p in parameters], len(buffers), num_shards)
        tensors = [*parameters, *buffers]
        self._shards = make_shards(
            Shard, self._layout, tensors, optimizer, num_workers, synchronous
        )

    def pull(self) -> Tensors:
        """Return the current parameters, then buffers; they must not be changed."""
        return self._layout.join([shard.pull() for shard in self._shards])

    def push(self, gradients: Sequence[torch.Tensor], weight: float) -> None:
        """Add a gradient, times its weight, to the next update."""
        for shard, part in zip(self._shards, self._layout.split(gradients), strict=True):
            shard.push(part, weight)

    def update(self) -> None:
        """Apply the gradients pushed since the last update."""
        for shard in self._shards:
            shard.update()
