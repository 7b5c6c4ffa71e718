"""Loops with other passes than one forward and one backward pass per batch."""

from __future__ import annotations

import copy
import itertools
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from tests.pytorch.setup import FEATURES, cycle, data, distance, net, parameters
from tests.real_loops.harness import (
    EPOCHS,
    FEEDS,
    ITERATIONS,
    TIMEOUT,
    TOLERANCE,
    TOTAL,
    Balanced,
    Half,
    epochs,
    optimizer_of,
    same_as_stock,
    same_as_stock_or_refused,
    step,
    without_exchange,
)

pytestmark = [pytest.mark.distributed]

NEARBY = ("in_turn", "one_ahead", "one_ahead_copied", "two_ahead")
"""Ways to get batches that all of these loops are tried with."""
KNOWN = ("in_turn", "one_ahead", "two_ahead")
"""Those that hand out the loader's own tensors."""


def climb(model: nn.Module) -> list[torch.Tensor]:
    """Move to where the loss is largest nearby, and return the way there."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    moves = [0.05 * gradient / norm for gradient in gradients]
    move(model, moves, 1)
    model.zero_grad(set_to_none=True)
    return moves


@torch.no_grad()
def move(model: nn.Module, moves: list[torch.Tensor], sign: int) -> None:
    for parameter, by in zip(model.parameters(), moves, strict=True):
        parameter.add_(by, alpha=sign)


def sharpness_aware(half: Half, feed: str) -> nn.Module:
    """Exchange gradients twice for each batch: at the parameters, and at the highest point near."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    for x, y in epochs(half.loader(), feed):
        loss = cross_entropy(model(x), y)
        loss.backward()
        moves = climb(model)
        cross_entropy(model(x), y).backward()
        move(model, moves, -1)
        half.log(loss, len(x))
        step(optimizer)
    return model


def siamese(half: Half, feed: str) -> nn.Module:
    """Run two forward passes, on both samples of each pair, before one backward pass."""
    left, y = data(149, torch.float64).tensors
    pairs = TensorDataset(left, left.roll(1, 0), (y == y.roll(1, 0)).to(torch.float64))
    model = half.wrap()
    optimizer = optimizer_of(model)
    for one, other, same in epochs(half.loader(pairs), feed):
        close = torch.exp(-(model(one) - model(other)).square().sum(1))
        loss = F.binary_cross_entropy(0.01 + 0.98 * close, same)
        loss.backward()
        half.log(loss, len(one))
        step(optimizer)
    return model


class Dropping(nn.Module):
    """A net that drops other features in every second pass, in place of random ones."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net(torch.float64)
        self._passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._passes += 1
        kept = (torch.arange(FEATURES) + self._passes) % 2 * 2.0
        outputs: torch.Tensor = self.inner(x * kept.to(x.dtype))
        return outputs


def agreeing(outputs: torch.Tensor, others: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the loss of two passes that must be right, and agree."""
    one, other = F.log_softmax(outputs, 1), F.log_softmax(others, 1)
    apart = F.kl_div(one, other, log_target=True, reduction="batchmean")
    return cross_entropy(outputs, y) + cross_entropy(others, y) + 0.5 * apart


def twice(half: Half, feed: str) -> nn.Module:
    """Run the same batch twice before the backward pass, each time with other features dropped."""
    model = half.wrap(Dropping())
    optimizer = optimizer_of(model)
    for x, y in epochs(half.loader(), feed):
        loss = agreeing(model(x), model(x), y)
        loss.backward()
        half.log(loss, len(x))
        step(optimizer)
    return model


def twice_in_one_pass(half: Half, feed: str) -> nn.Module:
    """Run two views of a batch as one batch of twice its size, as contrastive losses do."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    for x, y in epochs(half.loader(), feed):
        outputs, others = model(torch.cat([x, x.flip(1)])).chunk(2)
        loss = agreeing(outputs, others, y)
        loss.backward()
        half.log(loss, len(x))
        step(optimizer)
    return model


class Recurrent(nn.Module):
    """A recurrent net that hands its state from one chunk of a sequence to the next."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.cells = nn.GRU(FEATURES, 8, batch_first=True, dtype=torch.float64)
            self.out = nn.Linear(8, 3, dtype=torch.float64)

    def forward(self, x: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, state = self.cells(x, state)
        return self.out(outputs), state


def sequences() -> TensorDataset:
    made = torch.Generator().manual_seed(5)
    x = torch.randn(149, 12, FEATURES, generator=made, dtype=torch.float64)
    return TensorDataset(x, torch.randint(0, 3, (149, 12), generator=made))


def truncated(half: Half, feed: str) -> nn.Module:
    """Train on each batch in three chunks of time, with an optimizer step after each."""
    model = half.wrap(Recurrent())
    optimizer = optimizer_of(model)
    for x, y in epochs(half.loader(sequences()), feed):
        state = None
        for part, targets in zip(x.split(4, dim=1), y.split(4, dim=1), strict=True):
            outputs, state = model(part, state)
            loss = cross_entropy(outputs.flatten(0, 1), targets.flatten())
            loss.backward()
            state = state.detach()
            half.log(loss, len(x))
            step(optimizer)
    return model


def truncated_in_one_step(half: Half, feed: str) -> nn.Module:
    """Keep the gradients of all chunks but the last, and make one step for the whole batch."""
    model = half.wrap(Recurrent())
    optimizer = optimizer_of(model)
    for x, y in epochs(half.loader(sequences()), feed):
        state = None
        for start in (0, 4, 8):
            chunk = slice(start, start + 4)
            with without_exchange(model, "no_sync", keeps=start < 8):
                outputs, state = model(x[:, chunk], state)
                loss = cross_entropy(outputs.flatten(0, 1), y[:, chunk].flatten())
                loss.backward()
            state = state.detach()
            half.log(loss, len(x))
        step(optimizer)
    return model


def echoing(half: Half, feed: str) -> nn.Module:
    """Make three optimizer steps on each batch."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    for x, y in epochs(half.loader(), feed):
        for _ in range(3):
            loss = cross_entropy(model(x), y)
            loss.backward()
            half.log(loss, len(x))
            step(optimizer)
    return model


def pseudo_labels(half: Half, feed: str) -> nn.Module:
    """Run the model on the batch without gradients, in training mode, to get labels for it."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    for x, y in epochs(half.loader(), feed):
        with torch.no_grad():
            soft = F.softmax(model(x.flip(1)) / 0.5, 1)
        outputs = model(x)
        loss = cross_entropy(outputs, y) + 0.5 * cross_entropy(outputs, soft)
        loss.backward()
        half.log(loss, len(x))
        step(optimizer)
    return model


def teacher(half: Half, feed: str) -> nn.Module:
    """Follow a teacher that is a slow average of the model, and runs in training mode."""
    model = half.wrap()
    slow = copy.deepcopy(model.module)
    optimizer = optimizer_of(model)
    for x, y in epochs(half.loader(), feed):
        with torch.no_grad():
            wanted, before = slow(x), model.module(x)
        outputs = model(x)
        loss = cross_entropy(outputs, y) + F.mse_loss(outputs, (wanted + before) / 2)
        loss.backward()
        half.log(loss, len(x))
        step(optimizer)
        with torch.no_grad():
            for p, q in zip(slow.parameters(), model.module.parameters(), strict=True):
                p.lerp_(q, 0.1)
    return model


def evaluating(half: Half, feed: str, kind: str, accumulate: int = 1) -> nn.Module:
    """Evaluate on all workers after some batches, with a stock loader or one of the balancer."""
    model, loader = half.wrap(), half.loader()
    optimizer = optimizer_of(model)
    held_out = data(41, torch.float64)
    validation = (
        DataLoader(held_out, batch_size=5) if kind == "stock"
        else half.loader(held_out, shuffle=False)
    )  # fmt: skip
    for i, (x, y) in enumerate(epochs(loader, feed), 1):
        with without_exchange(model, "no_sync", keeps=i % accumulate > 0):
            loss = cross_entropy(model(x), y)
            (loss / accumulate).backward()
        half.log(loss, len(x))
        if i % 3 == 0:
            model.eval()
            with torch.no_grad():
                for inputs, labels in validation:
                    half.log(cross_entropy(model(inputs), labels), len(inputs))
            model.train()
        if i % accumulate == 0:
            step(optimizer)
    return model


def skipping(half: Half, feed: str, when: str, accumulate: int = 1) -> nn.Module:
    """Skip every fourth batch on all workers, before its forward pass or after it."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    trained = 0
    for i, (x, y) in enumerate(epochs(half.loader(), feed)):
        skips = i % 4 == 2
        if skips and when == "before":
            continue
        with without_exchange(model, "no_sync", keeps=(trained + 1) % accumulate > 0):
            loss = cross_entropy(model(x), y)
            if skips:
                continue
            (loss / accumulate).backward()
        half.log(loss, len(x))
        trained += 1
        if trained % accumulate == 0:
            step(optimizer)
    return model


def skipping_before_the_ragged_one(half: Half, feed: str) -> nn.Module:
    """Skip the last whole batch of an epoch.

    Worker 0 has one sample of it, and one of the ragged batch: only worker 1 can tell copies apart.
    """
    model = half.wrap(policy=cycle((1, 15)))
    optimizer = optimizer_of(model)
    for i, (x, y) in enumerate(epochs(half.loader(), feed)):
        if i % ITERATIONS == ITERATIONS - 2:
            continue
        loss = cross_entropy(model(x), y)
        loss.backward()
        half.log(loss, len(x))
        step(optimizer)
    return model


class Judge(nn.Module):
    """Tells outputs of the net from labels."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(61)
            layers = [nn.Linear(FEATURES + 3, 8), nn.Tanh(), nn.Linear(8, 1)]
            self.layers = nn.Sequential(*layers).to(torch.float64)

    def forward(self, x: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        judged: torch.Tensor = self.layers(torch.cat([x, outputs], 1))
        return F.softplus(judged).mean()


def adversarial(half: Half, feed: str, detaches: bool) -> nn.Module:
    """Train a judge on the outputs of the net, and then the net with the judge's opinion."""
    model, judge = half.wrap(), DistributedDataParallel(Judge())
    if not half.is_stock:
        half.balancer.include(judge)
    optimizer, other = optimizer_of(model), optimizer_of(judge)
    for x, y in epochs(half.loader(), feed):
        with nullcontext() if detaches else torch.no_grad():
            made = model(x).detach()
        (judge(x, made) - judge(x, F.one_hot(y, 3).to(made.dtype))).backward()
        step(other)
        made = model(x)
        loss = cross_entropy(made, y) - 0.1 * judge.module(x, made)
        loss.backward()
        judge.zero_grad()
        half.log(loss, len(x))
        step(optimizer)
    return nn.ModuleList([model, judge])


def accumulating(half: Half, feed: str, divides: str) -> nn.Module:
    """Accumulate four batches; the last window of an epoch has two, one of them ragged."""
    model, loader = half.wrap(), half.loader()
    optimizer = optimizer_of(model)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(FEEDS[feed](loader)):
            in_window = min(4, len(loader) - i // 4 * 4) if divides == "by window" else 4
            is_last = (i + 1) % 4 == 0 or i + 1 == len(loader)
            with without_exchange(model, "no_sync", keeps=not is_last):
                loss = cross_entropy(model(x), y) / in_window
                loss.backward()
            half.log(loss, len(x))
            if is_last:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                step(optimizer)
    return model


def benching(half: Half, accumulate: int) -> nn.Module:
    """Have one worker after the other sit out, also within accumulation windows."""
    sizes = cycle((8, 8), (16, 0), (0, 16), (5, 11), (16, 0), (1, 15), (0, 16))
    model, loader = half.wrap(policy=sizes, minimum=0), half.loader()
    optimizer = optimizer_of(model)
    for i, (x, y) in enumerate(epochs(loader), 1):
        own = len(x) if half.is_stock else half.balancer._loop.samples
        with without_exchange(model, "no_sync", keeps=i % accumulate > 0):
            loss = cross_entropy(model(x), y) / accumulate
            loss.backward()
        half.log(loss, own)
        if i % accumulate == 0:
            step(optimizer)
    return model


ALIKE = (
    sharpness_aware, siamese, twice, truncated, truncated_in_one_step, echoing, pseudo_labels,
    teacher,
)  # fmt: skip
"""Loops that hand tensors of the batch, or views of them, to the model."""


@pytest.mark.parametrize("feed", NEARBY)
@pytest.mark.parametrize("loop", ALIKE, ids=lambda loop: loop.__name__)
def test_passes_train_as_in_the_stock_script(workers, loop, feed):
    same_as_stock(workers, loop, feed=feed)


def test_two_views_in_one_pass_train_as_in_the_stock_script(workers):
    same_as_stock(workers, twice_in_one_pass, feed="in_turn")


@pytest.mark.parametrize("feed", NEARBY[1:])
def test_two_views_in_one_pass_are_attributed_or_refused(workers, feed):
    same_as_stock_or_refused(workers, twice_in_one_pass, feed=feed)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", ["stock", "balanced"])
@pytest.mark.parametrize("feed", NEARBY)
def test_evaluations_in_between_change_nothing(workers, feed, kind, accumulate):
    same_as_stock(workers, evaluating, feed=feed, kind=kind, accumulate=accumulate)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("feed", KNOWN)
def test_skipped_batches_change_nothing(workers, feed, when, accumulate):
    same_as_stock(workers, skipping, feed=feed, when=when, accumulate=accumulate)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("feed", ["one_ahead_copied", "two_ahead_copied"])
def test_batch_after_a_skipped_copy_is_attributed_or_refused(workers, feed, when):
    same_as_stock_or_refused(workers, skipping, feed=feed, when=when)


def test_one_worker_alone_cannot_mistake_a_copy(workers):
    same_as_stock_or_refused(workers, skipping_before_the_ragged_one, feed="one_ahead_copied")


@pytest.mark.parametrize("feed", KNOWN)
def test_batch_before_the_ragged_one_may_be_skipped(workers, feed):
    same_as_stock(workers, skipping_before_the_ragged_one, feed=feed)


@pytest.mark.parametrize("detaches", [True, False])
@pytest.mark.parametrize("feed", NEARBY)
def test_two_models_train_as_in_the_stock_script(workers, feed, detaches):
    same_as_stock(workers, adversarial, feed=feed, detaches=detaches)


@pytest.mark.parametrize("divides", ["by steps", "by window"])
@pytest.mark.parametrize("feed", NEARBY)
def test_ragged_windows_train_as_in_the_stock_script(workers, feed, divides):
    same_as_stock(workers, accumulating, feed=feed, divides=divides)


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_borrowed_samples_of_a_benched_worker_weigh_nothing(workers, accumulate):
    same_as_stock(workers, benching, accumulate=accumulate)


def sharpness_aware_alone(feed: str) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Climb by each worker's own gradients, which are not exchanged, and note the batches.

    The way up depends on the worker's own batch, so the result is not that of even sizes: it is
    compared with gradients that are weighted and summed by hand on the same batches.
    """
    half = Balanced()
    model = half.wrap()
    optimizer = optimizer_of(model)
    batches = []
    for x, y in epochs(half.loader(), feed):
        batches.append((x.clone(), y.clone()))
        with model.no_sync():
            cross_entropy(model(x), y).backward()
        moves = climb(model)
        cross_entropy(model(x), y).backward()
        move(model, moves, -1)
        step(optimizer)
    half.close()
    by_hand = weighted_by_hand(batches)
    return parameters(model), parameters(by_hand), [len(x) for x, _ in batches]


def weighted_by_hand(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> nn.Module:
    """Train without DDP: each worker's gradient times its samples, summed, over all samples."""
    model = net(torch.float64)
    optimizer = optimizer_of(model)
    for x, y in batches:
        cross_entropy(model(x), y).backward()
        moves = climb(model)
        cross_entropy(model(x), y).backward()
        move(model, moves, -1)
        everywhere = torch.tensor(float(len(x)), dtype=torch.float64)
        dist.all_reduce(everywhere)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(len(x))
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(everywhere)
        step(optimizer)
    return model


@pytest.mark.parametrize("feed", NEARBY)
def test_gradients_that_are_dropped_before_the_exchange_have_no_part_in_it(workers, feed):
    results = workers.run(sharpness_aware_alone, timeout=TIMEOUT, feed=feed)
    assert max(distance(got, expected) for got, expected, _ in results) <= TOLERANCE
    sizes = list(zip(*(sizes for *_, sizes in results), strict=True))
    assert {sum(both) for both in itertools.islice(sizes, 9)} == {TOTAL}
    assert len(set(sizes)) > 5
