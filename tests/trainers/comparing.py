"""What the tests of all trainers share: the speeds of two unequal workers, and comparisons."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from evenstep.core import Ints
from tests.pytorch.setup import distance

NUM_WORKERS = 2
TOTAL = 16
TABLE = ((8, 8), (4, 12), (15, 1), (9, 7), (1, 15), (3, 13), (14, 2))
"""Sizes for `tests.training.cycle.cycle`: even at first, as always, then unequal ones."""
SECONDS_PER_SAMPLE = (0.006, 0.002)
"""The emulated speeds: worker 0 takes three times as long."""
TOLERANCE = 1e-10
"""The largest relative difference from a stock trainer, in float64."""


class Slow(nn.Module):
    """Sleeps in each training pass as long as the samples take on this worker, for real."""

    def __init__(self, inner: nn.Module, seconds_per_sample: float) -> None:
        super().__init__()
        self.inner = inner
        self.seconds_per_sample = seconds_per_sample

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if self.training:
            first = next(one for one in (*inputs, *named.values()) if torch.is_tensor(one))
            time.sleep(len(first) * self.seconds_per_sample)
        return self.inner(*inputs, **named)


def above_the_optimum(sizes: Ints, total: int = TOTAL) -> float:
    """Return the iteration time of these sizes by the emulated speeds, over the optimal one."""
    optimum = total / sum(1 / seconds for seconds in SECONDS_PER_SAMPLE)
    taken = max(x * seconds for x, seconds in zip(sizes, SECONDS_PER_SAMPLE, strict=True))
    return float(taken / optimum)


def assert_same(balanced: torch.Tensor, stock: torch.Tensor) -> None:
    """Check that parameters are those of the stock trainer."""
    assert distance(balanced, stock) <= TOLERANCE
