"""The training function that the workers of Ray run, as a stock script and balanced.

The stock half has nothing of Evenstep in it; the loop is the same code in both.
"""

from __future__ import annotations

from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from evenstep.errors import InvalidSetting
from evenstep.ray_train import prepare
from tests.pytorch.setup import cycle, data, net, parameters
from tests.trainers.comparing import NUM_WORKERS, TABLE, TOTAL
from tests.trainers.ray_train.local import save

SAMPLES = 149
"""The sampler pads them to 150: nine iterations of 16 samples and one of 6."""
ITERATIONS = 10
"""Of an epoch."""
EPOCHS = 3
CHANGING: dict[str, Any] = {"policy": cycle(*TABLE), "summary": False, "warm_up": 0}
"""Sizes that are unequal and change in every iteration."""


class Numbered(Dataset[dict[str, Any]]):
    """Samples that say which they are."""

    def __init__(self, count: int = SAMPLES) -> None:
        self.x, self.y = data(count, torch.float64).tensors

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index], "labels": (self.y[index], index)}


CASES: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": True},
    "in_order": {},
    "processes": {"shuffle": True, "num_workers": 1, "prefetch_factor": 3},
    "drop_last": {"shuffle": True, "drop_last": True},
    "own_sampler": {"sampler": WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)},
}
"""Options of the DataLoader."""


def compare(config: dict[str, Any]) -> None:
    """Run all cases in both ways, one after the other in the same workers."""
    for name, options in CASES.items():
        for half in (stock, balanced):
            model, loader = half(DataLoader(Numbered(), TOTAL // NUM_WORKERS, **options))
            save(config["folder"], f"{name}-{half.__name__}", train(model, loader))
    for half in (stock, balanced):
        model, loader = half(DataLoader(Numbered(), TOTAL // NUM_WORKERS, shuffle=True))
        save(
            config["folder"], f"same_order-{half.__name__}", train(model, loader, sets_epoch=False)
        )
    save(config["folder"], "prepared", train(*prepared_by_ray()))
    save(config["folder"], "errors", errors())
    save(config["folder"], "state", leave_early())


def stock(loader: DataLoader[Any]) -> tuple[Any, Any]:
    model = ray.train.torch.prepare_model(net(torch.float64))
    return model, ray.train.torch.prepare_data_loader(loader)


def balanced(loader: DataLoader[Any]) -> tuple[Any, Any]:
    return prepare(net(torch.float64), loader, **CHANGING)


def prepared_by_ray() -> tuple[Any, Any]:
    """Balance a model and a loader that Ray has prepared already."""
    options: dict[str, Any] = {"gradient_as_bucket_view": True}
    model = ray.train.torch.prepare_model(net(torch.float64), parallel_strategy_kwargs=options)
    loader = DataLoader(Numbered(), TOTAL // NUM_WORKERS, shuffle=True)
    return prepare(model, ray.train.torch.prepare_data_loader(loader), **CHANGING)


def train(model: Any, loader: Any, sets_epoch: bool = True) -> dict[str, Any]:
    """Train for some epochs; return the parameters, and the samples of each iteration."""
    samples: list[list[int]] = []
    optimizer = optimizer_of(model)
    assert len(loader) in (ITERATIONS, ITERATIONS - 1)
    for epoch in range(EPOCHS):
        if sets_epoch:
            loader.sampler.set_epoch(epoch)
        samples += [step(model, optimizer, batch) for batch in loader]
    return {"parameters": parameters(model), "samples": samples}


def leave_early() -> dict[str, Any]:
    """Train for one epoch and a part of the next one, and return a checkpoint."""
    model, loader = balanced(DataLoader(Numbered(), TOTAL // NUM_WORKERS, **CASES["drop_last"]))
    optimizer = optimizer_of(model)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for iteration, batch in enumerate(loader):
            step(model, optimizer, batch)
            if (epoch, iteration) == (1, 3):
                break
    return {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),
    }  # fmt: skip


def continue_alone(config: dict[str, Any]) -> None:
    """Continue the checkpoint of two workers on one, with the same total."""
    model, loader = prepare(
        net(torch.float64), DataLoader(Numbered(), TOTAL, **CASES["drop_last"]), summary=False
    )
    optimizer, state = optimizer_of(model), config["state"]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
    samples: list[list[int]] = []
    for epoch in range(1, EPOCHS):
        loader.sampler.set_epoch(epoch)
        samples += [step(model, optimizer, batch) for batch in loader]
    save(config["folder"], "alone", {"parameters": parameters(model), "samples": samples})


def optimizer_of(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(model: Any, optimizer: torch.optim.Optimizer, batch: Any) -> list[int]:
    """Train on a batch, and return its samples."""
    y, indices = batch["labels"]
    F.cross_entropy(model(batch["x"]), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    return [int(index) for index in indices]


def errors() -> dict[str, str]:
    """Return the errors for settings that cannot be right, by the name of the setting."""
    loader = DataLoader(Numbered(), TOTAL // NUM_WORKERS)
    tries: dict[str, tuple[Any, dict[str, Any]]] = {
        "restart": (loader, {"straggler": "restart"}),
        "total": (loader, {"total": TOTAL + 2}),
        "no_total": (iter(range(5)), {}),
        "batch_sampler": (DataLoader(Numbered(), batch_sampler=[[0, 1], [2, 3]]), {}),
        "unknown": (loader, {"polcy": "even"}),
    }
    return {name: error_of(*what) for name, what in tries.items()}


def error_of(loader: Any, options: dict[str, Any]) -> str:
    try:
        prepare(net(torch.float64), loader, summary=False, **options)
    except InvalidSetting as error:
        return str(error)
    return "none"
