"""Diagnostics: the backends and devices of torch, and a short test of balanced training.

`python -m evenstep.pytorch.diagnostics` prints backends and devices as a line of JSON. With the
name of a file, under torchrun, it trains a small model briefly, plain and balanced, and writes the
result to the file; the last worker is slowed down on purpose.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from evenstep.pytorch.balancer import Balancer

TOTAL = 32
ITERATIONS = 12
_SECONDS = 0.001
"""Extra seconds per sample of the slow worker."""


def train_for_a_moment(result_file: str) -> None:
    """Train a small model plain and balanced, under torchrun, and write the result."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    plain, _ = _train("off")
    balanced, sizes = _train("balanced")
    pairs = zip(plain.parameters(), balanced.parameters(), strict=True)
    difference = max(float((a - b).detach().abs().max()) for a, b in pairs)
    if dist.get_rank() == 0:
        result = {"total": TOTAL, "batch_sizes": sizes, "largest_difference": difference}
        Path(result_file).write_text(json.dumps(result))
    dist.destroy_process_group()


def _train(mode: str) -> tuple[nn.Module, list[int]]:
    """Train from the start; return the net and the last batch sizes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.randn(TOTAL * ITERATIONS, 8)
    samples = TensorDataset(x, x.sum(dim=1, keepdim=True).sin())
    if dist.get_rank() == dist.get_world_size() - 1:
        net.register_forward_pre_hook(_slow_down)
    model = DistributedDataParallel(net)
    balancer = Balancer(model, TOTAL, mode=mode, summary=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in balancer.loader(samples, seed=0):
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    sizes: list[int] = balancer.plan.sizes.tolist()
    balancer.close()
    return net, sizes


def _slow_down(module: nn.Module, inputs: Any) -> None:
    time.sleep(_SECONDS * len(inputs[0]))


def facts() -> dict[str, Any]:
    """Return backends of process groups, and devices; `cuda` is the reason if there are none."""
    available = dist.is_available()
    backends = {
        name: available and bool(getattr(dist, f"is_{name}_available")())
        for name in ("gloo", "nccl", "mpi", "ucc")
    }
    properties = [
        torch.cuda.get_device_properties(i)
        for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    ]
    built = torch.version.cuda or torch.version.hip
    return {
        "version": torch.__version__,
        "backends": backends,
        "devices": [{"name": p.name, "gib": p.total_memory / 2**30} for p in properties],
        "cuda": "" if built is None else f"torch is a build for CUDA {built}, but finds no device",
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train_for_a_moment(sys.argv[1])
    else:
        print(json.dumps(facts()))
