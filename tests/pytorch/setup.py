"""What the tests of the PyTorch adapter train: small models, data that says who it is, policies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, TensorDataset

from evenstep.core import Reports
from evenstep.pytorch import Balancer
from tests.training.cycle import Cycle as Cycle
from tests.training.cycle import cycle as cycle

FEATURES = 6


def net(dtype: torch.dtype = torch.float32, batch_norm: bool = False) -> nn.Module:
    """Make a small net, the same wherever and whenever."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        middle: list[nn.Module] = [nn.BatchNorm1d(16)] if batch_norm else []
        layers = [nn.Linear(FEATURES, 16), *middle, nn.Tanh(), nn.Linear(16, 3)]
        return nn.Sequential(*layers).to(dtype)


def data(count: int, dtype: torch.dtype = torch.float32) -> TensorDataset:
    """Make samples and labels, the same wherever and whenever."""
    made = torch.Generator().manual_seed(11)
    samples = torch.randn(count, FEATURES, generator=made, dtype=dtype)
    return TensorDataset(samples, torch.randint(0, 3, (count,), generator=made))


class Indices(Dataset[tuple[int, str]]):
    """A data set whose samples say which they are, with an int and a str as many have."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[int, str]:
        return index, f"sample {index}"


@contextmanager
def balanced(total: int, model: nn.Module | None = None, **settings: Any) -> Iterator[Balancer]:
    """Balance a model, a small net by default, and close the balancer at the end."""
    wrapped = DistributedDataParallel(net() if model is None else model)
    balancer = Balancer(wrapped, total, **{"summary": False, "loss": "mean", **settings})
    try:
        yield balancer
    finally:
        balancer.close()


def model_of(balancer: Balancer) -> DistributedDataParallel:
    return balancer._model


def exchange(balancer: Balancer) -> None:
    """Train on something, so that the iteration comes to its end."""
    model = model_of(balancer)
    parameter = next(model.parameters())
    model(torch.ones(2, FEATURES, dtype=parameter.dtype)).sum().backward()


def note_reports(balancer: Balancer) -> list[tuple[Reports, Any]]:
    """Return a list that fills with the reports, and what they are of, as they are learned."""
    noted: list[tuple[Reports, Any]] = []
    boundary: Any = balancer._loop._boundary
    learn = boundary.learn

    def note(reports: Reports, done: Any) -> None:
        noted.append((reports, done))
        learn(reports, done)

    boundary.learn = note
    return noted


def visited(balancer: Balancer, loader: Any) -> list[list[int]]:
    """Run an epoch and return the samples of this worker, iteration by iteration."""
    batches = []
    for indices, _ in loader:
        weightless = balancer._loop.share.samples == 0
        batches.append([] if weightless else indices.tolist())
        exchange(balancer)
    return batches


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def parameters(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest number."""
    return float((a - b).abs().max() / b.abs().max())
