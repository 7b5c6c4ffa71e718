"""Means over all samples of an iteration, from means over each worker's batch."""

from __future__ import annotations

import torch
import torch.distributed as dist

from evenstep.pytorch.handed import Handed
from evenstep.pytorch.weighing import as_number


def mean_over_workers(
    value: float | torch.Tensor, samples: float, group: dist.ProcessGroup, handed: Handed
) -> float:
    """Return the mean of all workers' values, each weighted by its samples; NaN without any."""
    summed = as_number(value) * samples if samples else 0.0
    mine = torch.tensor([summed, float(samples)], dtype=torch.float64)
    dist.all_reduce(handed.watch(mine), group=group)
    return float(mine[0] / mine[1]) if mine[1] else float("nan")
