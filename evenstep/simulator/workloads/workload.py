"""The interface of workloads: a model, its training samples, and its evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from evenstep.core import Ints


@dataclass(frozen=True)
class Evaluation:
    """The quality of a model on the test samples."""

    loss: float
    accuracy: float
    """The share of correctly classified samples, 0..1."""


class Workload(Protocol):
    """A model with data. It holds no state of a run: one object serves any number of runs.

    Samples are identified by their position in the training data, 0 to `num_samples` - 1. The loss
    of given samples is the same on every worker, so an engine can assign them freely.
    """

    @property
    def name(self) -> str: ...

    @property
    def num_samples(self) -> int:
        """Number of training samples."""
        ...

    @property
    def labels(self) -> Ints:
        """The class of each training sample, for partitions skewed by class."""
        ...

    def make_model(self, seed: int) -> nn.Module:
        """Make the model with parameters that depend only on the seed."""
        ...

    def loss(self, model: nn.Module, samples: Ints) -> torch.Tensor:
        """Return the mean loss over training samples, ready for backward()."""
        ...

    def evaluate(self, model: nn.Module) -> Evaluation:
        """Evaluate the model on the test samples; the model is left in training mode."""
        ...


def gradients(workload: Workload, model: nn.Module, samples: Ints) -> list[torch.Tensor]:
    """Return the gradient of the mean loss over samples, one tensor per parameter."""
    parameters = list(model.parameters())
    loss = workload.loss(model, samples)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, found, strict=True)
    ]
