"""A training function that continues from its checkpoint after a worker has died."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from tests.pytorch.setup import parameters
from tests.trainers.comparing import NUM_WORKERS, TOTAL
from tests.trainers.ray_train.local import save
from tests.trainers.ray_train.loops import EPOCHS, Numbered, balanced, optimizer_of, step, stock

SAVED, FATAL = (1, 4), (1, 7)
"""Epoch and iteration: the checkpoint is made after the one, and worker 1 dies after the other."""


def train_and_die(config: dict[str, Any]) -> None:
    """Train balanced; worker 1 dies once. Then train as the stock script, undisturbed."""
    worker = ray.train.get_context().get_world_rank()
    died = Path(config["folder"]) / "died"
    samples = Path(config["folder"]) / f"samples-{worker}-{'after' if died.exists() else 'before'}"
    model, loader = balanced(make_loader())
    optimizer = optimizer_of(model)
    begin = restore(model, optimizer, loader)
    for epoch in range(begin, EPOCHS):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            trained = step(model, optimizer, batch)
            with samples.open("a") as file:
                file.write(json.dumps([loader.balancer.iteration - 1, trained]) + "\n")
            iteration = epoch, loader.balancer.iteration - 1 - epoch * len(loader)
            if iteration == SAVED:
                report(model, optimizer, loader, epoch)
            if iteration == FATAL and not died.exists():
                # A checkpoint counts once Ray's controller has polled the workers: wait for that.
                ray.train.get_all_reported_checkpoints()
                dist.barrier()
                if worker == 1:
                    died.touch()
                    os._exit(1)
    save(config["folder"], "balanced", parameters(model))

    model, loader = stock(make_loader())
    optimizer = optimizer_of(model)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            step(model, optimizer, batch)
    save(config["folder"], "stock", parameters(model))


def make_loader() -> DataLoader[Any]:
    return DataLoader(Numbered(), TOTAL // NUM_WORKERS, shuffle=True)


def restore(model: Any, optimizer: torch.optim.Optimizer, loader: Any) -> int:
    """Restore the checkpoint, if there is one, and return the epoch to continue with."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder) / "state.pt", weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
    return int(state["epoch"])


def report(model: Any, optimizer: torch.optim.Optimizer, loader: Any, epoch: int) -> None:
    """Report the figures, with a checkpoint of worker 0 for all."""
    state = {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(), "epoch": epoch,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, Path(folder) / "state.pt")
        is_first = ray.train.get_context().get_world_rank() == 0
        checkpoint = ray.train.Checkpoint.from_directory(folder) if is_first else None
        ray.train.report(loader.figures(), checkpoint=checkpoint)
