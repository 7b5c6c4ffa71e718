"""Classification: a workload of samples in memory with one class each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

from evenstep.core import Ints
from evenstep.simulator.workloads.workload import Evaluation

_AT_ONCE = 1000
"""Test samples per forward pass."""


@dataclass(frozen=True, eq=False)
class Classification:
    """A net that predicts classes, trained by cross entropy."""

    name: str
    make_net: Callable[[], nn.Module]
    """Makes a net with random parameters, after the seed was set."""
    train: TensorDataset
    """Inputs and labels to train on."""
    test: TensorDataset
    dtype: torch.dtype = torch.float32
    """Of inputs and parameters; inputs are converted batch by batch."""

    @property
    def num_samples(self) -> int:
        return len(self.train)

    @property
    def labels(self) -> Ints:
        labels: Ints = self.train.tensors[1].numpy()
        return labels

    def rows(self, samples: Ints) -> tuple[NDArray[Any], ...]:
        """Return training samples as arrays: inputs and labels."""
        return tuple(tensor.numpy()[samples] for tensor in self.train.tensors)

    def with_rows(self, rows: Sequence[NDArray[Any]]) -> Classification:
        """Return the same workload with only these training samples."""
        tensors = [torch.from_numpy(np.array(column)) for column in rows]
        return replace(self, train=TensorDataset(*tensors))

    def make_model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make_net().to(self.dtype)

    def loss(self, model: nn.Module, samples: Ints) -> torch.Tensor:
        inputs, labels = self.train.tensors
        chosen = torch.from_numpy(samples)
        return F.cross_entropy(model(inputs[chosen].to(self.dtype)), labels[chosen])

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> Evaluation:
        model.eval()
        loss, right = 0.0, 0
        inputs, labels = self.test.tensors
        for x, y in zip(inputs.split(_AT_ONCE), labels.split(_AT_ONCE), strict=True):
            outputs = model(x.to(self.dtype))
            loss += float(F.cross_entropy(outputs, y, reduction="sum"))
            right += int((outputs.argmax(dim=1) == y).sum())
        model.train()
        return Evaluation(loss / len(self.test), right / len(self.test))
