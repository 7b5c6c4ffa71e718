"""What the tests of Lightning train: modules, data, and fits with or without Evenstep.

Fits are jobs of the worker processes. Without Evenstep, they are plain Lightning.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
)

from evenstep.lightning import EvenstepCallback
from tests.pytorch.setup import data, net, parameters
from tests.trainers.comparing import NUM_WORKERS, SECONDS_PER_SAMPLE, TABLE, TOTAL, Slow
from tests.training.cycle import cycle

SAMPLES = 149
"""The sampler pads them to 150: nine iterations of 16 samples and one of 6."""
ITERATIONS = 10
"""Of an epoch."""
EVEN = TOTAL // NUM_WORKERS


class Classifier(pl.LightningModule):  # type: ignore[misc]
    """A classifier as a user writes it, which remembers the samples that it was trained on."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.net = net(torch.float64) if inner is None else inner
        self.visited: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y, index = batch
        self.visited.append(index.tolist())
        outputs = self.net(x)
        loss = F.cross_entropy(outputs, y)
        right = (outputs.argmax(1) == y).double().sum()
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("right", right, on_step=True, on_epoch=True, reduce_fx="sum", sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y, _ = batch
        self.log("val_loss", F.cross_entropy(self.net(x), y), on_step=True, sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Single(Classifier):
    """A model in single precision, which the Trainer converts together with its batches."""

    def __init__(self) -> None:
        super().__init__(net(torch.float32))


class Listed(Classifier):
    """Gets its batches from a list of one loader."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch[0], batch_idx)


class Estimating(Classifier):
    """Asks for the number of updates before there are optimizers, as a schedule does."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Unequal(Classifier):
    """Takes longer on one worker than on the other."""

    def __init__(self) -> None:
        super().__init__(Slow(net(torch.float64), SECONDS_PER_SAMPLE[dist.get_rank()]))


class Constant(Classifier):
    """Logs with the batch size of its loader."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y, _ = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss, batch_size=EVEN)
        return loss


class Sum(Classifier):
    """Has a loss that is a sum."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y, _ = batch
        return F.cross_entropy(self.net(x), y, reduction="sum")


class Gathering(Classifier):
    """Compares the samples of all workers."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.all_gather(batch[0])
        return super().training_step(batch, batch_idx)


class Pair(pl.LightningModule):  # type: ignore[misc]
    """Two nets with an optimizer each, in manual optimization."""

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


MODULES = {
    "classifier": Classifier, "single": Single, "listed": Listed, "estimating": Estimating,
    "unequal": Unequal, "constant": Constant, "sum": Sum, "gathering": Gathering, "pair": Pair,
}  # fmt: skip


def samples(count: int = SAMPLES, dtype: torch.dtype = torch.float64) -> TensorDataset:
    x, y = data(count, dtype).tensors
    return TensorDataset(x, y, torch.arange(count))


def make_loader(
    sampler: str = "", dtype: torch.dtype = torch.float64, in_list: bool = False, **options: Any
) -> Any:
    dataset = samples(dtype=dtype)
    if sampler == "distributed":
        options["sampler"] = DistributedSampler(dataset, seed=5)
    elif sampler == "odd":
        options["sampler"] = range(1, SAMPLES, 2)
    loader = DataLoader(dataset, EVEN, **options)
    return [loader] if in_list else loader


def callback(**settings: Any) -> EvenstepCallback:
    given: dict[str, Any] = {"policy": cycle(*TABLE), "summary": False, "warm_up": 0}
    return EvenstepCallback(**(given | settings))


def make_trainer(callbacks: list[Any], package: Any = pl, **settings: Any) -> Any:
    given: dict[str, Any] = {
        "max_epochs": 2, "strategy": "ddp", "accelerator": "cpu", "devices": NUM_WORKERS,
        "logger": False, "log_every_n_steps": 1, "enable_progress_bar": False,
        "enable_model_summary": False, "callbacks": callbacks,
        "enable_checkpointing": any(isinstance(one, ModelCheckpoint) for one in callbacks),
    }  # fmt: skip
    return package.Trainer(**(given | settings))


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


class Outcome(NamedTuple):
    """What a fit ends with on one worker."""

    parameters: torch.Tensor
    visited: list[list[int]]
    """The samples of each batch."""
    logged: list[tuple[int, dict[str, float]]]
    ended: tuple[int, int, int]
    """The updates and epochs that Lightning has counted, and the iterations of an epoch."""
    warned: list[str]


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
    logger = Memory()
    model = MODULES[module](**(module_options or {}))
    callbacks: list[Any] = [] if checkpoint is None else [ModelCheckpoint(**checkpoint)]
    callbacks += [callback(**(settings or {}))] if balanced else []
    val = DataLoader(samples(20), 5) if hasattr(model, "validation_step") else None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        made = make_trainer(callbacks, logger=logger, **trainer)
        made.fit(model, make_loader(**(loader or {})), val, ckpt_path=ckpt_path)
    texts = [str(warning.message) for warning in warned]
    ended = made.global_step, made.current_epoch, made.num_training_batches
    return Outcome(parameters(model), model.visited, logger.logged, ended, texts)


def fit_in_bfloat16(balanced: bool) -> torch.Tensor:
    model = Single()
    trainer = make_trainer([callback()] if balanced else [], precision="bf16-mixed")
    trainer.fit(model, make_loader(dtype=torch.float32))
    return parameters(model)


def fit_with_the_other_name(balanced: bool) -> tuple[torch.Tensor, list[int]]:
    """Fit with `pytorch_lightning`, while the callback is one of `lightning.pytorch`."""
    package: Any = import_module("pytorch_lightning")

    class Other(package.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net(torch.float64)
            self.sizes: list[int] = []

        def training_step(self, batch: Any) -> torch.Tensor:
            x, y, _ = batch
            self.sizes.append(len(x))
            return F.cross_entropy(self.net(x), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = Other()
    trainer = make_trainer([callback()] if balanced else [], package=package)
    trainer.fit(model, make_loader(sampler="odd"))
    return parameters(model), model.sizes


class Twice(NamedTuple):
    """What two fits of one Trainer leave behind."""

    parameters: torch.Tensor
    left: list[str]
    """The attributes of the strategy and the module."""
    can_be_pickled: bool


def fit_twice(balanced: bool) -> Twice:
    model = Classifier()
    trainer = make_trainer([callback()] if balanced else [])
    trainer.fit(model, make_loader())
    trainer.fit_loop.max_epochs = 4
    trainer.fit(model, make_loader())
    left = sorted([*vars(trainer.strategy), *vars(model)])
    pickled = pickle.loads(pickle.dumps(model))
    return Twice(parameters(model), left, torch.equal(parameters(pickled), parameters(model)))


class Normalised(Classifier):
    """Has BatchNorm, and remembers its statistics."""

    def __init__(self) -> None:
        super().__init__(net(torch.float64, batch_norm=True))
        self.trained: list[list[float]] = []
        self.validated: list[list[float]] = []

    @property
    def statistics(self) -> list[float]:
        means: list[float] = self.net.get_buffer("1.running_mean").tolist()
        return means

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.trained.append(self.statistics)
        return loss

    def on_validation_epoch_start(self) -> None:
        self.validated.append(self.statistics)


class Statistics(NamedTuple):
    """The running means of BatchNorm on one worker."""

    trained: list[list[float]]
    """After each forward pass."""
    validated: list[list[float]]
    at_the_end: list[float]


def fit_with_batch_norm(folder: str, table: tuple[tuple[int, int], ...]) -> Statistics:
    model = Normalised()
    saving = ModelCheckpoint(folder, every_n_train_steps=3, save_top_k=-1, save_weights_only=True)
    trainer = make_trainer([saving, callback(policy=cycle(*table))], val_check_interval=5)
    trainer.fit(model, make_loader(), DataLoader(samples(20), 5))
    return Statistics(model.trained, model.validated, model.statistics)


class Stream(IterableDataset[Any]):
    """Every other sample, from the first or the second one on."""

    def __init__(self, worker: int) -> None:
        self.indices = list(range(worker, 100, NUM_WORKERS))

    def __iter__(self) -> Iterator[Any]:
        everything = samples(100)
        return (everything[i] for i in self.indices)


class Read(NamedTuple):
    """What a worker was trained on, and what its stream has."""

    worker: int
    visited: list[int]
    stream: list[int]


def fit_on_streams(folder: str | None = None, ckpt_path: str | None = None) -> Read:
    model, stream = Classifier(), Stream(dist.get_rank())
    saving = [ModelCheckpoint(folder, every_n_train_steps=3, save_top_k=-1)] if folder else []
    trainer = make_trainer([*saving, callback()], max_epochs=1)
    trainer.fit(model, DataLoader(stream, EVEN), ckpt_path=ckpt_path)
    return Read(dist.get_rank(), [i for batch in model.visited for i in batch], stream.indices)


class Batches:
    """Batches that are no DataLoader's."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return iter(make_loader())


def fit_refused(kind: str) -> None:
    """Fit something that cannot be balanced."""
    module = MODULES.get(kind, Classifier)()
    loaders: dict[str, Any] = {
        "two": [make_loader(), make_loader()],
        "by name": {"one": make_loader(), "other": make_loader()},
        "combined": CombinedLoader([make_loader(), make_loader()], "min_size"),
        "iterable": Batches(),
        "own batches": DataLoader(samples(), batch_sampler=BatchSampler(range(40), EVEN, False)),
    }
    settings = {"total": 20} if kind == "other total" else {}
    trainer = make_trainer(
        [callback(**settings)],
        use_distributed_sampler=kind != "whole",
        sync_batchnorm=kind == "synchronised",
    )
    trainer.fit(module, loaders.get(kind, make_loader()))
