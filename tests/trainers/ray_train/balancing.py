"""A training function of two workers, one of which is three times as slow as the other."""

from __future__ import annotations

import tempfile
from typing import Any

import ray.train
import torch
from torch.utils.data import DataLoader

from evenstep.ray_train import prepare
from tests.pytorch.setup import net
from tests.trainers.comparing import NUM_WORKERS, SECONDS_PER_SAMPLE, Slow
from tests.trainers.ray_train.local import save
from tests.trainers.ray_train.loops import Numbered, optimizer_of, step

ITERATIONS, TOTAL = 40, 64
SETTLED = 20
"""Iterations after which the sizes are looked at, and their figures reported."""


def balance(config: dict[str, Any]) -> None:
    """Train with the default policy; save all plans, and the figures of both reports."""
    worker = ray.train.get_context().get_world_rank()
    slow = Slow(net(torch.float64), SECONDS_PER_SAMPLE[worker])
    loader = DataLoader(Numbered(ITERATIONS * TOTAL), TOTAL // NUM_WORKERS, shuffle=True)
    model, prepared = prepare(slow, loader, name=f"worker {worker}", log=config["log"])
    optimizer, sizes, reported = optimizer_of(model), [], []
    for batch in prepared:
        step(model, optimizer, batch)
        sizes.append(prepared.balancer.plan.sizes.tolist())
        if prepared.balancer.iteration in (SETTLED, ITERATIONS):
            reported.append(prepared.figures())
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report(reported[-1], checkpoint=checkpoint)
    save(config["folder"], "sizes", (sizes, reported))
