"""What the tests of Lightning train: modules, data, and a fit with or without Evenstep.

A fit is a job of the worker processes. The stock half is plain Lightning.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from evenstep.lightning import EvenstepCallback
from tests.pytorch.setup import data, net, parameters
from tests.trainers.comparing import NUM_WORKERS, SECONDS_PER_SAMPLE, TABLE, TOTAL, Slow
from tests.training.cycle import cycle

SAMPLES = 149
"""The sampler pads them to 150: nine iterations of 16 samples and one of 6."""
ITERATIONS = 10
"""Of an epoch."""


class Memory(Logger):  # type: ignore[misc]
    """A logger that keeps what is logged."""

    name = version = None

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.logged.append((step or 0, dict(metrics)))


class Classifier(pl.LightningModule):  # type: ignore[misc]
    """A classifier as a user writes it."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.net = net(torch.float64) if inner is None else inner
        self.visited: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y, index = batch
        self.visited.append(index.tolist())
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y, _ = batch
        self.log("val_loss", F.cross_entropy(self.net(x), y), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Pair(pl.LightningModule):  # type: ignore[misc]
    """Two nets with an optimizer each, which the step runs by itself."""

    def __init__(self, every: int = 1) -> None:
        super().__init__()
        self.first, self.second = net(torch.float64), net(torch.float64)
        self.automatic_optimization = False
        self.every = every
        self.visited: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y, index = batch
        self.visited.append(index.tolist())
        for part, optimizer in zip((self.first, self.second), self.optimizers(), strict=True):
            self.toggle_optimizer(optimizer)
            loss = F.cross_entropy(part(x), y)
            self.manual_backward(loss)
            if (batch_idx + 1) % self.every == 0:
                optimizer.step()
                optimizer.zero_grad()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.SGD(part.parameters(), lr=rate)
            for part, rate in ((self.first, 0.1), (self.second, 0.2))
        ]


class Estimating(Classifier):
    """Asks for the number of updates before there are optimizers, as a schedule does."""

    def configure_optimizers(self) -> Any:
        rate = 1 / self.trainer.estimated_stepping_batches
        return torch.optim.SGD(self.parameters(), lr=rate)


class Unequal(Classifier):
    """Takes longer on one worker than on the other."""

    def __init__(self) -> None:
        worker = torch.distributed.get_rank()
        super().__init__(Slow(net(torch.float64), SECONDS_PER_SAMPLE[worker]))


MODULES = {"classifier": Classifier, "pair": Pair, "estimating": Estimating, "unequal": Unequal}


def samples(count: int = SAMPLES) -> TensorDataset:
    x, y = data(count, torch.float64).tensors
    return TensorDataset(x, y, torch.arange(count))


def train_loader(sampler: str = "", **options: Any) -> Any:
    dataset = samples()
    if sampler == "distributed":
        options["sampler"] = DistributedSampler(dataset, seed=5)
    elif sampler == "odd":
        options["sampler"] = range(1, SAMPLES, 2)
    return DataLoader(dataset, TOTAL // NUM_WORKERS, **options)


class Outcome(NamedTuple):
    """What a fit ends with on one worker."""

    parameters: torch.Tensor
    visited: list[list[int]]
    logged: list[tuple[int, dict[str, float]]]
    global_step: int
    epoch: int


def callback(**settings: Any) -> EvenstepCallback:
    given: dict[str, Any] = {"policy": cycle(*TABLE), "summary": False, "warm_up": 0}
    return EvenstepCallback(**(given | settings))


def fit(
    balanced: bool,
    module: str = "classifier",
    module_options: dict[str, Any] | None = None,
    loader: dict[str, Any] | None = None,
    ckpt_path: str | None = None,
    checkpoint: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    **trainer: Any,
) -> Outcome:
    """Fit a module, with or without the callback of Evenstep."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    logger = Memory()
    model = MODULES[module](**(module_options or {}))
    callbacks = [] if checkpoint is None else [ModelCheckpoint(**checkpoint)]
    callbacks += [callback(**(settings or {}))] if balanced else []
    given: dict[str, Any] = {
        "max_epochs": 2, "strategy": "ddp", "accelerator": "cpu", "devices": NUM_WORKERS,
        "logger": logger, "log_every_n_steps": 1, "enable_progress_bar": False,
        "enable_model_summary": False, "enable_checkpointing": checkpoint is not None,
    }  # fmt: skip
    made = pl.Trainer(callbacks=callbacks, **(given | trainer))
    val = DataLoader(samples(20), 5) if hasattr(model, "validation_step") else None
    made.fit(model, train_loader(**(loader or {})), val, ckpt_path=ckpt_path)
    return Outcome(
        parameters(model), model.visited, logger.logged, made.global_step, made.current_epoch
    )
