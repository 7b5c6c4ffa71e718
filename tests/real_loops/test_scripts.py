"""Whole scripts: trainers with snapshots, evaluation and schedules, and their own batch makers.

Where a script differs from its stock form, `half.is_stock` says so; the rest is the same code.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from tests.pytorch.setup import data, net
from tests.real_loops.harness import (
    EPOCHS,
    NUM_WORKERS,
    SAMPLES,
    TOTAL,
    Half,
    epochs,
    make_balancer,
    one_ahead,
    optimizer_of,
    same_as_stock,
    step,
    without_exchange,
)

pytestmark = [pytest.mark.distributed]

CLASSES = 3


# A trainer of a tutorial: it saves a snapshot after some epochs, and begins where it ended.


class TutorialTrainer:
    """Trains epoch by epoch, and writes a snapshot."""

    def __init__(self, half: Half, snapshot: Path, save_every: int) -> None:
        self.half = half
        self.save_every = save_every
        self.snapshot = snapshot
        self.epochs_run = 0
        inner = net(torch.float64)
        if snapshot.exists():
            loaded = torch.load(snapshot)
            inner.load_state_dict(loaded["MODEL_STATE"])
            self.epochs_run = loaded["EPOCHS_RUN"]
        train = data(SAMPLES, torch.float64)
        self.model = DistributedDataParallel(inner)
        if half.is_stock:
            self.loader: Any = DataLoader(
                train, TOTAL // NUM_WORKERS, sampler=DistributedSampler(train)
            )
        else:
            half.balancer = make_balancer(self.model)
            self.loader = half.balancer.loader(train)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self, max_epochs: int) -> nn.Module:
        for epoch in range(self.epochs_run, max_epochs):
            self.loader.sampler.set_epoch(epoch)
            for source, targets in self.loader:
                self.run_batch(source, targets)
            if self.half.worker == 0 and (epoch + 1) % self.save_every == 0:
                self.save(epoch + 1)
        return self.model

    def run_batch(self, source: torch.Tensor, targets: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(source), targets)
        loss.backward()
        self.optimizer.step()
        self.half.log(loss, len(source))

    def save(self, epochs_run: int) -> None:
        states = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epochs_run}
        torch.save(states, self.snapshot)


def tutorial(half: Half, folder: str) -> nn.Module:
    """Train for two epochs, and let another trainer go on from its snapshot; stock never stops."""
    snapshot = Path(folder) / "snapshot.pt"
    if half.is_stock:
        return TutorialTrainer(half, Path(folder) / "none.pt", save_every=99).train(EPOCHS + 1)
    TutorialTrainer(half, snapshot, save_every=2).train(2)
    half.close()
    dist.barrier()
    return TutorialTrainer(half, snapshot, save_every=2).train(EPOCHS + 1)


def test_trainer_with_snapshots_trains_as_in_the_stock_script(workers, tmp_path):
    same_as_stock(workers, tutorial, folder=str(tmp_path))


def stopping(half: Half, folder: str, ahead: bool) -> nn.Module:
    """Save a checkpoint in mid-epoch, and continue from it with new objects; stock never stops."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    loader: Any = half.loader()
    rest = train_some(half, model, optimizer, loader, ahead, stop=None if half.is_stock else 14)
    if half.is_stock:
        return model
    # As the state of worker 0 fits all.
    checkpoint = Path(folder) / "checkpoint.pt"
    if half.worker == 0:
        objects = {"model": model, "optimizer": optimizer}
        balanced = {"balancer": half.balancer, "loader": loader}
        states = {name: x.state_dict() for name, x in {**objects, **balanced}.items()}
        torch.save(states, checkpoint)
    rest.close()
    half.close()
    dist.barrier()
    states = torch.load(checkpoint, weights_only=False)
    model = half.wrap()
    optimizer = optimizer_of(model)
    loader = half.loader()
    model.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    half.balancer.load_state_dict(states["balancer"])
    loader.load_state_dict(states["loader"])
    train_some(half, model, optimizer, loader, ahead, stop=None, epoch=1)
    return model


def train_some(
    half: Half,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Any,
    ahead: bool,
    stop: int | None,
    epoch: int = 0,
) -> Any:
    """Train to the end or for `stop` iterations, and return the batches that are left."""
    batches = over(loader, ahead, epoch)
    for x, y in itertools.islice(batches, stop):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        half.log(loss, len(x))
        step(optimizer)
    return batches


def over(loader: Any, ahead: bool, first: int) -> Iterator[Any]:
    for epoch in range(first, EPOCHS):
        loader.sampler.set_epoch(epoch)
        yield from one_ahead(loader) if ahead else loader


@pytest.mark.parametrize("ahead", [False, True])
def test_checkpoint_in_mid_epoch_continues_after_the_last_batch_trained_on(
    workers, tmp_path, ahead
):
    same_as_stock(workers, stopping, folder=str(tmp_path), ahead=ahead)


# A trainer of a language model: its loss inside the model, evaluation, clipping, a scaler.


class Characters(nn.Module):
    """A net that predicts the next token from the last two, and returns its loss, too."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(29)
            self.tokens = nn.Embedding(13, 8, dtype=torch.float64)
            self.mix = nn.Linear(16, 13, dtype=torch.float64)

    def forward(
        self, x: torch.Tensor, targets: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        tokens = self.tokens(x)
        before = F.pad(tokens, (0, 0, 1, 0))[:, :-1]
        logits = self.mix(torch.tanh(torch.cat([tokens, before], dim=2)))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def text(count: int, seed: int) -> TensorDataset:
    made = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 13, (count, 10), generator=made)
    return TensorDataset(tokens[:, :-1], tokens[:, 1:])


class LanguageTrainer:
    """Trains and evaluates in every epoch, with what a GPU would need turned off."""

    def __init__(self, half: Half, evaluates: str) -> None:
        self.half = half
        self.evaluates = evaluates
        self.model = DistributedDataParallel(Characters())
        train, test = text(SAMPLES, 31), text(43, 37)
        self.test_loader = self.stock_loader(test, shuffle=False)
        if half.is_stock:
            self.train_loader = self.stock_loader(train)
        else:
            half.balancer = make_balancer(self.model)
            self.train_loader = half.balancer.loader(train, num_workers=0)
            if evaluates == "balanced":
                self.test_loader = half.balancer.loader(test, shuffle=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, eps=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)

    def stock_loader(self, dataset: Any, shuffle: bool = True) -> Any:
        sampler: Any = DistributedSampler(dataset, shuffle=shuffle)
        return DataLoader(dataset, TOTAL // NUM_WORKERS, sampler=sampler)

    def run_batch(self, source: torch.Tensor, targets: torch.Tensor, train: bool) -> None:
        enabled = torch.set_grad_enabled(train)
        with enabled, torch.amp.autocast("cpu", enabled=False):
            _, loss = self.model(source, targets)
        if train:
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.half.log(loss, len(source))

    def run_epoch(self, epoch: int, loader: Any, train: bool) -> None:
        loader.sampler.set_epoch(epoch)
        for source, targets in loader:
            self.run_batch(source, targets, train)

    def train(self) -> nn.Module:
        for epoch in range(EPOCHS):
            self.run_epoch(epoch, self.train_loader, train=True)
            self.run_epoch(epoch, self.test_loader, train=False)
        return self.model


def language(half: Half, evaluates: str) -> nn.Module:
    return LanguageTrainer(half, evaluates).train()


@pytest.mark.parametrize("evaluates", ["stock", "balanced"])
def test_trainer_with_evaluation_and_clipping_trains_as_in_the_stock_script(workers, evaluates):
    same_as_stock(workers, language, evaluates=evaluates)


# A script that trains a convolutional net on images, with functions and average meters.


class AverageMeter:
    """The average of values, each with the number of samples that it is of."""

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def update(self, value: float, count: int) -> None:
        self.sum += value * count
        self.count += count

    def all_reduce(self) -> None:
        summed = torch.tensor([self.sum, self.count], dtype=torch.float64)
        dist.all_reduce(summed)
        self.sum, self.count = float(summed[0]), int(summed[1])

    @property
    def average(self) -> float:
        return self.sum / self.count


def conv_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(41)
        layers = [
            nn.Conv2d(1, 6, kernel_size=3, padding=1), nn.GELU(), nn.AvgPool2d(2),
            nn.Conv2d(6, 8, kernel_size=3), nn.GELU(), nn.Flatten(), nn.Linear(32, CLASSES),
        ]  # fmt: skip
        return nn.Sequential(*layers).to(torch.float64)


def images(count: int, seed: int) -> TensorDataset:
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 8, 8, generator=made, dtype=torch.float64)
    return TensorDataset(x, torch.randint(0, CLASSES, (count,), generator=made))


def adjust_learning_rate(optimizer: torch.optim.Optimizer, epoch: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.05 * 0.1 ** (epoch // 2)


def train_epoch(
    half: Half, loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer
) -> AverageMeter:
    losses = AverageMeter()
    model.train()
    for x, target in loader:
        output = model(x)
        loss = F.cross_entropy(output, target)
        losses.update(loss.item(), x.size(0))
        half.log(loss, x.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def validate(loader: Any, model: nn.Module) -> AverageMeter:
    """Evaluate a part on each worker, and the rest that does not divide on all of them."""
    losses = AverageMeter()

    def run(batches: Any) -> None:
        with torch.no_grad():
            for x, target in batches:
                losses.update(F.cross_entropy(model(x), target).item(), x.size(0))

    model.eval()
    run(loader)
    losses.all_reduce()
    done = len(loader.sampler) * NUM_WORKERS
    if done < len(loader.dataset):
        run(DataLoader(Subset(loader.dataset, range(done, len(loader.dataset))), 5))
    return losses


def image_net(half: Half) -> nn.Module:
    train, held_out = images(SAMPLES, 43), images(45, 47)
    model = DistributedDataParallel(conv_net())
    if half.is_stock:
        loader: Any = DataLoader(train, TOTAL // NUM_WORKERS, sampler=DistributedSampler(train))
    else:
        half.balancer = make_balancer(model)
        loader = half.balancer.loader(train)
    val_sampler: Any = DistributedSampler(held_out, shuffle=False, drop_last=True)
    val_loader = DataLoader(held_out, 5, sampler=val_sampler)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        adjust_learning_rate(optimizer, epoch)
        losses = train_epoch(half, loader, model, optimizer)
        losses.all_reduce()
        half.log(losses.average, 1)
        half.log(validate(val_loader, model).average, 1)
    return model


def test_script_with_meters_and_validation_trains_as_in_the_stock_script(workers):
    same_as_stock(workers, image_net)


# Scripts that make their own batches, from offsets into a long row of tokens.


def offsets_of(made: torch.Generator) -> torch.Tensor:
    """Draw the offsets of all workers, the same ones on each."""
    return torch.randint(0, 490, (TOTAL,), generator=made)


class BatchMaker:
    """Makes a batch of as many samples as this worker has in the iteration."""

    def __init__(self, half: Half, asks: str) -> None:
        self._half = half
        self._asks = asks
        self._drawn = torch.Generator().manual_seed(53)
        made = torch.Generator().manual_seed(59)
        self._tokens = torch.randint(0, 13, (500,), generator=made)

    def get_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        offsets = self._mine(offsets_of(self._drawn))
        windows = torch.stack([self._tokens[int(i) : int(i) + 10] for i in offsets])
        return windows[:, :-1], windows[:, 1:]

    def _mine(self, offsets: torch.Tensor) -> Any:
        half = self._half
        if half.is_stock:
            return offsets[half.worker :: NUM_WORKERS]
        if self._asks == "deal":
            return half.balancer.deal(offsets)
        if self._asks == "deal a list":
            return half.balancer.deal(offsets.tolist())
        count = half.balancer.begin_iteration()
        return offsets[:count] if half.worker == 0 else offsets[-count:]


def own_batches(half: Half, asks: str, accumulate: int, ahead: bool) -> nn.Module:
    """Train on batches made on the spot: each before it is used, or before the last one's end."""
    model = half.wrap(Characters())
    optimizer = optimizer_of(model)
    make = BatchMaker(half, asks)
    x, y = make.get_batch()
    for iteration in range(24 // accumulate):
        for micro in range(accumulate):
            if not ahead and (iteration or micro):
                x, y = make.get_batch()
            model.require_backward_grad_sync = micro == accumulate - 1
            _, loss = model(x, y)
            size = len(x)
            if ahead:
                x, y = make.get_batch()
            (loss / accumulate).backward()
            half.log(loss, size)
        step(optimizer)
    return model


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("asks", ["deal", "deal a list", "begin_iteration"])
def test_own_batches_train_as_in_the_stock_script(workers, asks, accumulate, ahead):
    same_as_stock(workers, own_batches, asks=asks, accumulate=accumulate, ahead=ahead)


# A trainer that makes its loader before its model.


def loader_first(half: Half) -> nn.Module:
    train = data(SAMPLES, torch.float64)
    if half.is_stock:
        loader: Any = DataLoader(train, TOTAL // NUM_WORKERS, sampler=DistributedSampler(train))
    else:
        half.balancer = make_balancer()
        loader = half.balancer.loader(train)
    model = DistributedDataParallel(net(torch.float64))
    if not half.is_stock:
        half.balancer.bind(model)
    optimizer = optimizer_of(model)
    for i, (x, y) in enumerate(epochs(loader), 1):
        with without_exchange(model, "no_sync", keeps=i % 2 > 0):
            loss = F.cross_entropy(model(x), y)
            (loss / 2).backward()
        half.log(loss, len(x))
        if i % 2 == 0:
            step(optimizer)
    return model


def test_loader_may_be_made_before_the_model(workers):
    same_as_stock(workers, loader_first)
