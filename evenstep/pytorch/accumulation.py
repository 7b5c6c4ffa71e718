"""Accumulation: the gradients of several batches that go into one exchange.

Backward passes under `no_sync` keep their gradients, and DDP calls no communication hook for them.
So when one begins, it registers a hook for its first gradient, which registers one for its end.

Each batch has a gradient weight of its own, ``x_i / X`` of its iteration, as the last batch of an
epoch may be divided in other proportions. The exchange multiplies all gradients by one weight. So
where weights differ, the gradients that were kept are multiplied by the ratio, before others are
added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle


class AccumulationWatch:
    """Calls `ended` after a backward pass whose gradients are not exchanged."""

    def __init__(self, model: DistributedDataParallel, ended: Callable[[], None]) -> None:
        self._model = model
        self._ended = ended
        self._hook: RemovableHandle | None = None
        self.is_muted = False

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Ignore passes inside this context: its user keeps the gradients."""
        self.is_muted = True
        try:
            yield
        finally:
            self.is_muted = False

    def expect(self) -> None:
        """Expect the end of a backward pass, if gradients of parameters are computed in it.

        `torch.autograd.grad` computes those of inputs only, for a penalty, say.
        """
        self.forget()
        trained = [p for p in self._model.parameters() if p.requires_grad]
        self._hook = register_multi_grad_hook(trained, self._on_gradient, mode="any")

    def forget(self) -> None:
        """Remove the hook: gradients have come, or will not come."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _on_gradient(self, gradient: torch.Tensor) -> None:
        self.forget()
        torch.autograd.Variable._execution_engine.queue_callback(self._ended)


class AccumulationWindow:
    """The gradients kept for the next exchange, and the weight that they must be multiplied by.

    `parameters` returns all parameters that are trained.
    """

    def __init__(self, parameters: Callable[[], list[Any]]) -> None:
        self._parameters = parameters
        self._kept: float | None = None
        """The weight of the gradients that were kept; None if there are none."""
        self._weight = 0.0
        """The weight of the batch that gradients are computed on."""
        self._aside: dict[Any, torch.Tensor] = {}
        """The kept gradients, while those of a batch of weight 0 are computed."""

    @property
    def weight(self) -> float:
        """The weight of all gradients in the next exchange."""
        return self._weight if self._kept is None else self._kept

    @torch.no_grad()
    def begin(self, weight: float) -> None:
        """Compute the next gradients on a batch of this weight."""
        self._weight = weight
        if self._kept is None or self._kept == weight or self._aside:
            return
        with_gradients = [p for p in self._parameters() if p.grad is not None]
        if weight == 0:
            self._aside = {p: p.grad.clone() for p in with_gradients}
            return
        for parameter in with_gradients:
            parameter.grad.mul_(self._kept / weight)
        self._kept = weight

    @torch.no_grad()
    def keep(self) -> None:
        """Keep the gradients that were computed for the next exchange."""
        if self._weight == 0:
            # They came from borrowed samples.
            for parameter in self._parameters():
                if parameter.grad is not None:
                    kept = self._aside.get(parameter)
                    parameter.grad.copy_(torch.zeros_like(parameter.grad) if kept is None else kept)
            self._aside = {}
        else:
            self._kept = self._weight

    def correct(self, bucket: GradBucket) -> None:
        """Take the gradients of a batch of weight 0 out of a bucket, if others were kept."""
        if self._aside:
            for parameter, view in zip(bucket.parameters(), bucket.gradients(), strict=True):
                kept = self._aside.get(parameter)
                view.zero_() if kept is None else view.copy_(kept)

    def end(self) -> None:
        """Forget what was kept: its exchange has begun, or its losses were weighed by counts."""
        self._kept, self._aside = None, {}
