"""Digits: small nets for scikit-learn's 1797 images of handwritten digits."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from evenstep.simulator.workloads import NUM_TRAINING
from evenstep.simulator.workloads.classification import Classification


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return the training and the test samples, which scikit-learn bundles."""
    bunch = load_digits()
    # The file is ordered by writer; shuffled, both parts have digits of all writers.
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(bunch.images, dtype=torch.float32)[order].unsqueeze(1)
    images = (images - images.mean()) / images.std()
    labels = torch.tensor(bunch.target)[order]
    return (
        TensorDataset(images[:NUM_TRAINING], labels[:NUM_TRAINING]),
        TensorDataset(images[NUM_TRAINING:], labels[NUM_TRAINING:]),
    )


def digits_net(seed: int = 0, width: int = 8) -> nn.Sequential:
    """Return a net for 8 x 8 images; its first layer is a convolution.

    It has no BatchNorm, so a sample's gradient does not depend on the rest of its batch; and it is
    smooth, so rounding errors stay small: ReLU and MaxPool can amplify them.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, width, kernel_size=3, padding=1),
            nn.Tanh(),
            nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * 16, 10),
        )


@torch.no_grad()
def accuracy(net: nn.Module, samples: TensorDataset) -> float:
    """Return the share of samples that a net classifies correctly."""
    images, labels = samples.tensors
    return float((net(images).argmax(dim=1) == labels).float().mean())


def softmax_digits(dtype: torch.dtype = torch.float32) -> Classification:
    """Return the workload of one linear layer on digits: convex and fast."""
    return Classification("softmax-digits", _softmax_net, *digits(), dtype)


def mlp_digits(dtype: torch.dtype = torch.float32, width: int = 64) -> Classification:
    """Return the workload of a net with one hidden layer on digits."""
    return Classification("mlp-digits", lambda: _mlp_net(width), *digits(), dtype)


def _softmax_net() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def _mlp_net(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10))
