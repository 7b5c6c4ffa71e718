"""The parameter server: holds the parameters, averages what is pushed, and applies it.

The paper's workflow (Alg. 3): workers pull w, compute a gradient on their x_i samples, and push
n x_i / X times it; the server averages and makes the update. Tensors are dealt out to shards, each
with an optimizer of its own; as optimizers go element by element, any number of shards gives the
same parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evenstep.engines.optimizers import Optimizer, Sgd, per_push
from evenstep.engines.sharding import deal_to_shards

Tensors = list[torch.Tensor]


class Shard:
    """Some of the tensors, with what was pushed for them since the last update.

    `average`: whether an update divides by the weights pushed, so that it is a weighted mean. If
    the samples of those who pushed add up to X, that is the number of workers contributing.
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
        """Return the tensors of now; they stay as they are, whatever comes after.

        All that pull between two updates share one copy, and it lives as long as one of them
        holds it.
        """
        if self._snapshot is None:
            self._snapshot = [tensor.clone() for tensor in self._tensors]
        return self._snapshot

    def push(self, gradients: Sequence[torch.Tensor], weight: float) -> None:
        """Add a gradient to the update to come."""
        if self._tensors:
            torch._foreach_add_(self._sums, list(gradients), alpha=weight)
        self._weight += weight

    def update(self) -> None:
        """Apply what was pushed; where nothing was, nothing changes."""
        if self._optimizer is None or self._weight == 0.0:
            return
        if self._average:
            torch._foreach_div_(self._sums, self._weight)
        for tensor, gradient in zip(self._tensors, self._sums, strict=True):
            tensor.grad = gradient
        self._optimizer.step()
        torch._foreach_zero_(self._sums)
        self._weight = 0.0
        self._snapshot = None


class ParameterServer:
    """The parameters and buffers of a model, on some shards.

    Buffers (the running statistics of BatchNorm) are treated as parameters whose gradient is the
    change that the worker made to them, with a learning rate of 1.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        buffers: Sequence[torch.Tensor],
        optimizer: Optimizer,
        num_workers: int,
        synchronous: bool = True,
        num_shards: int = 1,
    ) -> None:
        """`num_workers` is n; without `synchronous` each push is an update, at eta / n."""
        self._dealt = deal_to_shards([p.numel() for p in parameters], num_shards)
        averaging: Optimizer = Sgd(learning_rate=1.0)
        if not synchronous:
            optimizer = per_push(optimizer, num_workers)
            averaging = per_push(averaging, num_workers)
        self._shards = [
            Shard([parameters[i] for i in dealt], optimizer, synchronous) for dealt in self._dealt
        ]
        first_buffer = len(parameters)
        self._dealt.append([first_buffer + i for i in range(len(buffers))])
        self._shards.append(Shard(buffers, averaging, synchronous))

    def pull(self) -> Tensors:
        """Return parameters, then buffers, as they are now; they must not be changed."""
        held = [
            (place, tensor)
            for places, shard in zip(self._dealt, self._shards, strict=True)
            for place, tensor in zip(places, shard.pull(), strict=True)
        ]
        return [tensor for _, tensor in sorted(held, key=lambda pair: pair[0])]

    def push(self, gradients: Sequence[torch.Tensor], weight: float) -> None:
        """Add a gradient, times its weight, to the update to come."""
        for places, shard in zip(self._dealt, self._shards, strict=True):
            shard.push([gradients[i] for i in places], weight)

    def update(self) -> None:
        """Apply what was pushed since the last update."""
        for shard in self._shards:
            shard.update()
