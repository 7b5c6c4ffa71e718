"""The paper's convolutional nets for 32 x 32 images, and a small Inception-style net."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

Norm = Callable[[int], nn.Module]
"""Number of channels to a layer that normalises them."""


def group_norm(channels: int) -> nn.Module:
    """Return a layer that normalises each sample separately, in groups of eight channels."""
    return nn.GroupNorm(channels // 8, channels)


NORMS: dict[str, Norm] = {"batch": nn.BatchNorm2d, "group": group_norm}
"""With `batch` a sample's gradient depends on the rest of its batch, with `group` it does not."""


class Standardise(nn.Module):
    """Scales bytes so that channels have mean 0 and deviation 1 over the training images."""

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, mean: tuple[float, ...], deviation: tuple[float, ...]) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("deviation", deviation)):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # The memory format in which convolutions are fastest on CPUs.
        return ((x - self.mean) / self.deviation).contiguous(memory_format=torch.channels_last)


class CentreCrop(nn.Module):
    """Crops an image to its centre."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        margin = (x.shape[-1] - self._size) // 2
        return x[..., margin : margin + self._size, margin : margin + self._size]


def cifarnet() -> nn.Sequential:
    """Return TensorFlow's CifarNet: two convolutions, three dense layers, on the central 24 x 24.

    >>> sum(parameter.numel() for parameter in cifarnet().parameters())
    1068298
    """
    return nn.Sequential(
        CentreCrop(24),
        nn.Conv2d(3, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
        nn.LocalResponseNorm(9, alpha=0.009, beta=0.75),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.LocalResponseNorm(9, alpha=0.009, beta=0.75),
        nn.MaxPool2d(3, 2, padding=1),
        nn.Flatten(),
        nn.Linear(64 * 6 * 6, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, 10),
    )


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut that pads channels with zeros (option A)."""

    def __init__(self, before: int, after: int, norm: Norm) -> None:
        super().__init__()
        self._stride = after // before
        self._more = after - before
        self.layers = nn.Sequential(
            *_convolution(before, after, 3, norm, self._stride),
            nn.ReLU(),
            *_convolution(after, after, 3, norm),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = F.pad(x[..., :: self._stride, :: self._stride], (0, 0, 0, 0, 0, self._more))
        out: torch.Tensor = F.relu(self.layers(x) + shortcut)
        return out


def resnet32(norm: Norm = nn.BatchNorm2d, blocks: int = 5) -> nn.Sequential:
    """Return He et al.'s net for CIFAR-10: 32 layers, or 6n + 2 with n blocks of each width.

    >>> sum(parameter.numel() for parameter in resnet32().parameters())
    464154
    """
    widths = [width for width in (16, 32, 64) for _ in range(blocks)]
    middle = [ResidualBlock(*pair, norm) for pair in zip([16, *widths], widths, strict=False)]
    return nn.Sequential(*_convolution(3, 16, 3, norm), nn.ReLU(), *middle, *_classify(64))


class InceptionBlock(nn.Module):
    """Four parallel paths with a quarter of the channels each: 1 x 1, 3 x 3, 5 x 5, pooling."""

    def __init__(self, before: int, after: int, norm: Norm) -> None:
        super().__init__()
        part = after // 4

        def path(*sizes: int) -> list[nn.Module]:
            """Return a 1 x 1 convolution, then one of each given size."""
            layers = _convolution(before, part, 1, norm)
            for size in sizes:
                layers += [nn.ReLU(), *_convolution(part, part, size, norm)]
            return [*layers, nn.ReLU()]

        pool = nn.AvgPool2d(3, 1, padding=1)
        # As in Inception-V3, 5 x 5 is 3 x 3 twice.
        paths = (path(), path(3), path(3, 3), [pool, *path()])
        self.paths = nn.ModuleList(nn.Sequential(*layers) for layers in paths)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([path(x) for path in self.paths], dim=1)


def small_inception(norm: Norm = nn.BatchNorm2d) -> nn.Sequential:
    """Return a net of three Inception blocks, a stand-in for Inception-V3's gradients."""
    return nn.Sequential(
        *_convolution(3, 32, 3, norm, stride=2),
        nn.ReLU(),
        InceptionBlock(32, 64, norm),
        nn.MaxPool2d(2),
        InceptionBlock(64, 96, norm),
        InceptionBlock(96, 128, norm),
        *_classify(128),
    )


def _convolution(
    before: int, after: int, size: int, norm: Norm, stride: int = 1
) -> list[nn.Module]:
    convolution = nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)
    return [convolution, norm(after)]


def _classify(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
