"""Shared by the DDP benchmarks: starting workers, a workload, and training loops to time."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from evenstep.pytorch import Balancer


def launch(work: Callable[..., Any], num_workers: int, *args: Any) -> Any:
    """Run `work(rank, *args)` in some processes, and return the result of worker 0."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        spawn(_run, (work, num_workers, folder, port, args), nprocs=num_workers, join=True)
        return torch.load(Path(folder) / "result", weights_only=False)


def _run(
    rank: int, work: Callable[..., Any], num_workers: int, folder: str, port: int, args: Any
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        # A TCP store, as under torchrun: the signs of life of the workers are part of the cost.
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=num_workers,
        timeout=timedelta(seconds=120),
    )
    result = work(rank, *args)
    if rank == 0:
        torch.save(result, Path(folder) / "result")
    dist.barrier()
    dist.destroy_process_group()


def conv_net(width: int = 16) -> nn.Module:
    """A small convolutional net for 16 x 16 images, without BatchNorm."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * width * 16, 10),
    )  # fmt: skip


def images(count: int) -> TensorDataset:
    """Random images and labels: enough to take time, nothing to learn."""
    generator = torch.Generator().manual_seed(1)
    pictures = torch.randn(count, 3, 16, 16, generator=generator)
    return TensorDataset(pictures, torch.randint(0, 10, (count,), generator=generator))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    inputs, labels = batch
    F.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()


def plain_loader(data: TensorDataset, total: int) -> DataLoader[Any]:
    """The loader of a stock DDP script."""
    sampler: DistributedSampler[Any] = DistributedSampler(data, seed=0)
    return DataLoader(data, batch_size=total // dist.get_world_size(), sampler=sampler)


@contextmanager
def balanced(net: nn.Module, total: int, **settings: Any) -> Iterator[tuple[Any, Balancer]]:
    """A model with a balancer on it."""
    model = DistributedDataParallel(net)
    balancer = Balancer(model, total, summary=False, **settings)
    try:
        yield model, balancer
    finally:
        balancer.close()


def forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


class Stopwatch:
    """Times iterations: each from the end of the one before to its own."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.times: list[float] = []

    def start(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> None:
        now = time.perf_counter()
        self.times.append(now - self._last)
        self._last = now


def run_iterations(model: nn.Module, batches: Iterator[Any], count: int, watch: Stopwatch) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch.start()
    for _ in range(count):
        step(model, optimizer, next(batches))
        watch.lap()


def solo_times(net: nn.Module, data: TensorDataset, sizes: list[int], repeat: int) -> list[float]:
    """Return how long this worker takes alone, without any exchange, for batches of these sizes."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    medians = []
    for size in sizes:
        durations = []
        for i in range(repeat):
            start = time.perf_counter()
            samples = [data[(i * size + j) % len(data)] for j in range(size)]
            batch = torch.utils.data.default_collate(samples)
            step(net, optimizer, batch)
            durations.append(time.perf_counter() - start)
        medians.append(float(np.median(durations)))
    return medians
