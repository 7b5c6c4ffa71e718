"""The reference of a run: the same updates in one process, each on a whole batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from evenstep.core.dealing import numpy_order
from evenstep.simulator.workloads.workload import Workload
from reproduction.netns.training import OPTIMIZER, SEED


def train_alone(workload: Workload, num_updates: int, total: int) -> Sequence[torch.Tensor]:
    """Return the parameters after a number of updates by plain PyTorch."""
    model = workload.make_model(SEED)
    parameters = list(model.parameters())
    optimizer = OPTIMIZER.make(parameters)
    num_epochs = -(-num_updates * total // workload.num_samples)
    order = np.concatenate(
        [numpy_order(workload.num_samples, SEED, epoch) for epoch in range(num_epochs)]
    )
    for k in range(num_updates):
        optimizer.zero_grad()
        workload.loss(model, order[k * total : (k + 1) * total]).backward()
        optimizer.step()
    return parameters


def difference(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    """Return the largest difference between parameters, relative to the largest of theirs.

    >>> difference([torch.tensor([1.0, 2.5])], [torch.tensor([1.0, 2.0])])
    0.25
    """
    a, b = (torch.cat([t.detach().ravel() for t in tensors]) for tensors in (ours, theirs))
    return float((a - b).abs().max() / b.abs().max())
