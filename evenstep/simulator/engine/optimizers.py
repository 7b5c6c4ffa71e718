"""Optimizers of the parameter server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from evenstep.core.short_form import construct, parse_spec
from evenstep.errors import InvalidSetting


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent, optionally with momentum."""

    learning_rate: float = 0.01
    """eta."""
    momentum: float = 0.0
    weight_decay: float = 0.0

    def make(self, parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            parameters,
            lr=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )


@dataclass(frozen=True)
class Adam:
    """Adam, as implemented by torch."""

    learning_rate: float = 0.001
    """eta."""
    weight_decay: float = 0.0

    def make(self, parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=self.learning_rate, weight_decay=self.weight_decay)


Optimizer = Sgd | Adam

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"sgd": Sgd, "adam": Adam}


def make_optimizer(spec: str) -> Optimizer:
    """Parse the settings of an optimizer from their short form.

    >>> make_optimizer("sgd:learning_rate=0.1,momentum=0.9")
    Sgd(learning_rate=0.1, momentum=0.9, weight_decay=0.0)
    """
    name, settings = parse_spec(spec)
    if name not in OPTIMIZERS:
        raise InvalidSetting(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {name!r}")
    optimizer = construct(OPTIMIZERS[name], name, settings)
    if not optimizer.learning_rate > 0:
        raise InvalidSetting(f"learning_rate of {name} must be > 0, got {optimizer.learning_rate}")
    return optimizer


def per_push(optimizer: Optimizer, num_workers: int) -> Optimizer:
    """Return the optimizer for ASP and SSP, where each of n pushes is an update: eta / n.

    >>> per_push(Sgd(learning_rate=0.5), num_workers=4).learning_rate
    0.125
    """
    return replace(optimizer, learning_rate=optimizer.learning_rate / num_workers)
