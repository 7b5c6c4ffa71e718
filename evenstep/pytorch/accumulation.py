"""Gradient accumulation: detects backward passes under DDP's `no_sync`.

DDP calls no communication hook for them. So a forward pass under `no_sync` registers a hook for the
first gradient of the backward pass that may follow, and that hook registers one for its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from evenstep.training.iteration import Iteration


class AccumulationWatch:
    """Calls `ended` after each backward pass whose gradients were not exchanged."""

    def __init__(
        self,
        model: DistributedDataParallel,
        now: Callable[[], Iteration],
        ended: Callable[[], None],
    ) -> None:
        self._model = model
        self._now = now
        self._of: Iteration | None = None
        """The iteration of the forward pass whose backward pass is expected."""
        self._ended = ended
        self._hook: RemovableHandle | None = None
        self._is_muted = False
        model.register_forward_pre_hook(torch.compiler.disable(self._on_forward))

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Ignore passes inside this context: its user keeps the gradients."""
        self._is_muted = True
        try:
            yield
        finally:
            self._is_muted = False

    def _forget(self) -> None:
        """Remove the hook: the backward pass has begun, or will not come."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _on_forward(self, model: torch.nn.Module, inputs: Any) -> None:
        if self._is_muted:
            return
        if torch.is_grad_enabled() and not self._model.require_backward_grad_sync:
            self._forget()
            self._of = self._now()
            trained = [p for p in model.parameters() if p.requires_grad]
            self._hook = register_multi_grad_hook(trained, self._on_gradient, mode="any")

    def _on_gradient(self, gradient: torch.Tensor) -> None:
        if self._now() is not self._of:
            # A gradient of a later iteration: the expected backward pass did not come.
            self._forget()
            return
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._on_end)

    def _on_end(self) -> None:
        self._forget()
        self._ended()
