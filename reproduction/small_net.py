"""A small convolutional net on CIFAR-10, for experiments that train many times."""

from __future__ import annotations

from torch import nn

from evenstep.simulator.workloads.classification import Classification
from evenstep.simulator.workloads.nets import Standardise
from evenstep.simulator.workloads.pictures import load_pictures


def small_net() -> nn.Sequential:
    """Return a net for pictures of 32 x 32 that two busy cores can train."""
    return nn.Sequential(
        nn.AvgPool2d(2),
        nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 16, 10),
    )  # fmt: skip


def cifar10(path: str) -> Classification:
    """Return the workload of the small net on CIFAR-10."""
    pictures = load_pictures(path)

    def make() -> nn.Module:
        return nn.Sequential(Standardise(pictures.mean, pictures.deviation), *small_net())

    name = f"small net on {pictures.name}"
    return Classification(name, make, pictures.train, pictures.test)
