"""Batches, gradients and models that are used again, kept, dropped, copied or saved."""

from __future__ import annotations

import copy
import io
import queue
import threading
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy

from evenstep.pytorch.compatibility import Hook
from tests.pytorch.setup import FEATURES, cycle
from tests.real_loops.harness import (
    EPOCHS,
    NUM_WORKERS,
    TIMEOUT,
    TOTAL,
    Balanced,
    Half,
    copied,
    epochs,
    optimizer_of,
    same_as_stock,
    same_as_stock_or_refused,
    step,
    without_exchange,
)

pytestmark = [pytest.mark.distributed]


def train_on(half: Half, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    x, y = batch
    loss = cross_entropy(model(x), y)
    loss.backward()
    half.log(loss, len(x))
    step(optimizer)


def used_again(half: Half, feed: str, copies: bool = False) -> nn.Module:
    """Train on each batch, and then once more on the one before it."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    before = None
    for batch in epochs(half.loader(), feed):
        for one in (batch, before):
            if one is not None:
                train_on(half, model, optimizer, copied(one) if copies else one)
        before = batch
    return model


def staged(half: Half, feed: str) -> nn.Module:
    """Copy every batch into the same memory."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    memory = torch.zeros(TOTAL, FEATURES, dtype=torch.float64)
    for x, y in epochs(half.loader(), feed):
        memory[: len(x)].copy_(x)
        train_on(half, model, optimizer, (memory[: len(x)], y))
    return model


def regularised(half: Half, feed: str) -> nn.Module:
    """Penalise gradients on a copy of the batch, in a backward pass of its own, now and then."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    for i, (x, y) in enumerate(epochs(half.loader(), feed)):
        loss = cross_entropy(model(x), y)
        loss.backward()
        if i % 3 == 0:
            inputs = x.detach().clone().requires_grad_()
            (slopes,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
            unused = 0 * sum(p.sum() for p in model.parameters())
            (slopes.square().sum(1).mean() + unused).backward()
        half.log(loss, len(x))
        step(optimizer)
    return model


def passes_first(half: Half, feed: str) -> nn.Module:
    """Run the forward passes of a window first, and then the backward passes."""
    model = half.wrap(policy=cycle((8, 8), (4, 12), (9, 7), (1, 15), (3, 13)))
    optimizer = optimizer_of(model)
    batches = epochs(half.loader(), feed)
    for one, other, last in zip(batches, batches, batches, strict=False):
        with model.no_sync():
            losses = [cross_entropy(model(x), y) for x, y in (one, other)]
            for loss in losses:
                loss.backward()
        losses.append(cross_entropy(model(last[0]), last[1]))
        losses[-1].backward()
        for loss, (x, _) in zip(losses, (one, other, last), strict=True):
            half.log(loss, len(x))
        step(optimizer)
    return model


def evaluated_by_itself(
    half: Half, feed: str, with_gradients: bool = False, persistent: bool = False
) -> nn.Module:
    """Evaluate on the loader of the training, in mid-epoch."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    # A stock loader with persistent processes cannot be iterated over twice at a time.
    loading: Any = {"num_workers": 1, "persistent_workers": persistent and not half.is_stock}
    loader = half.loader(**(loading if persistent else {}))
    for i, batch in enumerate(epochs(loader, feed, num_epochs=2)):
        train_on(half, model, optimizer, batch)
        if i % 4 == 1:
            model.eval()
            with nullcontext() if with_gradients else torch.no_grad():
                for x, _ in loader:
                    model(x)
            model.train()
    return model


@pytest.mark.parametrize(
    ("loop", "feed"),
    [
        (used_again, "in_turn"),
        (used_again, "one_ahead"),
        (staged, "in_turn"),
        (staged, "one_ahead"),
        (regularised, "one_ahead"),
        (regularised, "one_ahead_copied"),
        (passes_first, "in_turn"),
        (evaluated_by_itself, "one_ahead"),
        (evaluated_by_itself, "one_ahead_copied"),
    ],
)
def test_batches_that_are_used_again_train_as_in_the_stock_script(workers, loop, feed):
    same_as_stock(workers, loop, feed=feed)


@pytest.mark.parametrize(
    ("feed", "options"),
    [("one_ahead_copied", {"with_gradients": True}), ("in_turn", {"persistent": True})],
)
def test_evaluation_on_the_loader_of_the_training_changes_nothing(workers, feed, options):
    same_as_stock(workers, evaluated_by_itself, feed=feed, **options)


@pytest.mark.parametrize("feed", ["in_turn", "one_ahead"])
def test_copies_of_earlier_batches_are_attributed_or_refused(workers, feed):
    same_as_stock_or_refused(workers, used_again, feed=feed, copies=True)


def fetched_by_another_thread(settings: dict[str, Any]) -> int:
    """Train on batches that a thread fetches ahead, and return the number of iterations."""
    half = Balanced()
    model = half.wrap(**settings)
    optimizer = optimizer_of(model)
    ready: queue.Queue[Any] = queue.Queue()
    loader = half.loader()

    def fetch() -> None:
        for batch in loader:
            ready.put(batch)
        ready.put(None)

    thread = threading.Thread(target=fetch)
    thread.start()
    try:
        batches: Iterator[Any] = iter(ready.get, None)
        for batch in batches:
            train_on(half, model, optimizer, batch)
    finally:
        thread.join()
        half.close()
    return len(half.losses)


def test_loader_is_refused_to_another_thread(workers):
    failures = workers.failures(fetched_by_another_thread, timeout=TIMEOUT, settings={})
    assert [failure.kind for failure in failures] == ["InvalidSetting"] * NUM_WORKERS
    assert all("another thread" in failure.message for failure in failures)


def test_loader_of_even_sizes_may_be_that_of_another_thread(workers):
    settings = {"mode": "off"}
    got = workers.run(fetched_by_another_thread, timeout=TIMEOUT, settings=settings)
    assert got == [10] * NUM_WORKERS


# Losses that are weighed by counts: here all samples have the same, so that the stock script is
# that without them.


def weighed(half: Half, loss: torch.Tensor, count: int) -> torch.Tensor:
    return loss if half.is_stock else half.balancer.weigh(loss, count)


def dropped_windows(half: Half, set_to_none: bool) -> nn.Module:
    """Accumulate four batches, and leave the rest of each epoch."""
    model, loader = half.wrap(), half.loader()
    optimizer = optimizer_of(model)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        optimizer.zero_grad(set_to_none=set_to_none)
        for i, (x, y) in enumerate(loader, 1):
            with without_exchange(model, "no_sync", keeps=i % 4 > 0):
                loss = cross_entropy(model(x), y)
                weighed(half, loss if not half.is_stock else loss / 4, len(x)).backward()
            half.log(loss, len(x))
            if i % 4 == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=set_to_none)
    return model


def looked_at_first(half: Half) -> nn.Module:
    """Drop the gradients of a first pass on each batch."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    for x, y in epochs(half.loader()):
        with model.no_sync():
            weighed(half, cross_entropy(model(x), y), len(x)).backward()
        model.zero_grad()
        loss = cross_entropy(model(x), y)
        weighed(half, loss, len(x)).backward()
        half.log(loss, len(x))
        step(optimizer)
    return model


def exchanged_twice(half: Half) -> nn.Module:
    """Accumulate two batches, with an exchange for each."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    for i, (x, y) in enumerate(epochs(half.loader()), 1):
        loss = cross_entropy(model(x), y)
        weighed(half, loss, len(x)).backward()
        half.log(loss, len(x))
        if i % 2 == 0:
            step(optimizer)
    return model


@pytest.mark.parametrize(
    ("loop", "options"),
    [
        (dropped_windows, {"set_to_none": True}),
        (dropped_windows, {"set_to_none": False}),
        (looked_at_first, {}),
        (exchanged_twice, {}),
    ],
)
def test_counts_are_those_of_the_gradients_that_are_exchanged(workers, loop, options):
    same_as_stock(workers, loop, **options)


# Losses of several kinds, and of other models.


def another_sum(first_mean: int) -> None:
    """Train on means, and then on a mean and a sum for each batch."""
    half = Balanced()
    model = half.wrap()
    optimizer = optimizer_of(model)
    try:
        for i, (x, y) in enumerate(epochs(half.loader())):
            train_on(half, model, optimizer, (x, y))
            if i >= first_mean:
                cross_entropy(model(x), y, reduction="sum").backward()
    finally:
        half.close()


@pytest.mark.parametrize("first_mean", [0, 3])
def test_sum_after_a_mean_is_refused(workers, first_mean):
    failures = workers.failures(another_sum, timeout=TIMEOUT, first_mean=first_mean)
    assert [failure.kind for failure in failures] == ["InvalidSetting"] * NUM_WORKERS
    assert all('loss="sum"' in failure.message for failure in failures)


def with_a_critic(half: Half) -> nn.Module:
    """Train a model of this worker alone, on sums, between the passes of the model."""
    model, critic = half.wrap(), nn.Linear(FEATURES, 1, dtype=torch.float64)
    optimizer = optimizer_of(model)
    for x, y in epochs(half.loader()):
        outputs = model(x)
        F.mse_loss(critic(x).squeeze(1), y.to(x.dtype), reduction="sum").backward()
        loss = cross_entropy(outputs, y)
        loss.backward()
        half.log(loss, len(x))
        step(optimizer)
    return model


def with_weights_of_one(half: Half) -> nn.Module:
    """Add up losses times weights that are 1 in sum."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    for x, y in epochs(half.loader()):
        weights = torch.ones_like(y, dtype=x.dtype)
        losses = cross_entropy(model(x), y, reduction="none")
        loss = (losses * (weights / weights.sum())).sum()
        loss.backward()
        half.log(loss, len(x))
        step(optimizer)
    return model


def without_a_loss_at_times(half: Half) -> nn.Module:
    """Take part in the exchange with a loss of 0, as on a batch that is to be left out."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    for i, (x, y) in enumerate(epochs(half.loader())):
        outputs = model(x)
        loss = cross_entropy(outputs, y) if i % 4 else outputs.sum() * 0
        loss.backward()
        half.log(loss, len(x))
        step(optimizer)
    return model


def without_warnings(half: Half, of: str) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model: nn.Module = globals()[of](half)
    return model


@pytest.mark.parametrize(
    "loop", ["with_a_critic", "with_weights_of_one", "without_a_loss_at_times"]
)
def test_loss_that_is_right_is_neither_refused_nor_warned_of(workers, loop):
    same_as_stock(workers, without_warnings, of=loop)


# Copies of a model, in memory and in a file.


def hooks_of(model: nn.Module) -> list[Any]:
    return [
        hook
        for module in model.modules()
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    ]


def copied_and_saved(half: Half, what: str) -> nn.Module:
    """Follow a copy of the model, and save the whole model, with its class."""
    model, loader = half.wrap(), half.loader()
    optimizer = optimizer_of(model)
    slow = copy.deepcopy(model if what == "ddp" else model.module).eval()
    for i, (x, y) in enumerate(epochs(loader, num_epochs=2)):
        with torch.no_grad():
            wanted = slow(x)
        outputs = model(x)
        loss = cross_entropy(outputs, y) + F.mse_loss(outputs, wanted)
        loss.backward()
        half.log(loss, len(x))
        step(optimizer)
        if i % 7 == 1:
            file = io.BytesIO()
            torch.save(model if what == "ddp" else model.module, file)
            file.seek(0)
            slow = torch.load(file, weights_only=False).eval()
            assert not any(isinstance(hook, Hook) for hook in hooks_of(slow))
    return model


@pytest.mark.parametrize("what", ["ddp", "module"])
def test_copies_of_a_model_have_no_part_in_its_training(workers, what):
    same_as_stock(workers, copied_and_saved, what=what)
