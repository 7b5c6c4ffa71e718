"""Weighing: without it, every gradient of unequal batches would be wrong without a word."""

from __future__ import annotations

from collections.abc import Callable

import torch

from evenstep.errors import InvalidSetting
from evenstep.training.iteration import Iteration


class WeighingWatch:
    """Watches for gradients of an iteration whose loss was not weighed.

    To be closed after the first iteration, not inside its backward pass: who has weighed the loss
    once does so always, and such hooks make the offloading of gradients wait.
    """

    def __init__(self, model: torch.nn.Module, now: Callable[[], Iteration]) -> None:
        self._now = now
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._on_gradient)
            for parameter in model.parameters() if parameter.requires_grad
        ]  # fmt: skip

    def close(self) -> None:
        """Watch no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        now = self._now()
        # An iteration without a place in the data has no batch: its gradients are not ours.
        if now.place and not now.is_done:
            raise InvalidSetting(
                "the loss must be weighed before its backward pass, as in "
                "balancer.weigh(loss).backward(), since batches differ in size: got gradients of "
                f"iteration {now.number} without"
            )
