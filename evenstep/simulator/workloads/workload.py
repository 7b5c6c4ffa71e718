"""A workload: a model, the samples to train it on, and how good it is by now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from evenstep.core import Ints


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on the samples kept for testing."""

    loss: float
    accuracy: float
    """The share of samples told right, 0..1."""


class Workload(Protocol):
    """What is trained. It holds no state of a run: one object serves any number of them.

    Samples go by their position in the training data, 0 to `num_samples` - 1. The same samples
    have the same loss whoever asks, so that an engine can deal them out as it likes.
    """

    @property
    def name(self) -> str: ...

    @property
    def num_samples(self) -> int:
        """How many samples there are to train on."""
        ...

    @property
    def labels(self) -> Ints:
        """The class of each training sample, for partitions that are skewed by it."""
        ...

    def make_model(self, seed: int) -> nn.Module:
        """Make the model with parameters that depend on nothing but the seed."""
        ...

    def loss(self, model: nn.Module, samples: Ints) -> torch.Tensor:
        """Return the mean loss over training samples, ready to go back from."""
        ...

    def evaluate(self, model: nn.Module) -> Evaluation:
        """Evaluate the model on the test samples; the model is left in training mode."""
        ...


def gradients(workload: Workload, model: nn.Module, samples: Ints) -> list[torch.Tensor]:
    """Return the gradient of the mean loss over samples, a tensor for each parameter."""
    parameters = list(model.parameters())
    loss = workload.loss(model, samples)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, found, strict=True)
    ]
