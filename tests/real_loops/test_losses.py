"""Losses of other kinds than the mean over a worker's samples: each in its own form, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy

from tests.pytorch.setup import net
from tests.real_loops.harness import (
    NUM_WORKERS,
    TIMEOUT,
    TOTAL,
    Balanced,
    Half,
    epochs,
    optimizer_of,
    same_as_stock,
    step,
    sum_over_workers,
    without_exchange,
)

pytestmark = [pytest.mark.distributed]

CLASS_WEIGHTS = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
FEEDS = ("in_turn", "one_ahead", "one_ahead_copied")
SMALL = 0.1 / TOTAL
"""The learning rate of losses that are sums."""


class Losing(nn.Module):
    """A net that returns its loss, as many language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net(torch.float64)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.inner(x), y)


def tokens_in(y: torch.Tensor) -> int:
    """The number of tokens that a batch counts for: one to three for each sample."""
    return int((y + 1).sum())


def loss_over_tokens(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the sum over all tokens: a sample with several tokens counts for each of them."""
    return ((y + 1) * cross_entropy(outputs, y, reduction="none")).sum()


def a_mean(half: Half, feed: str, accumulate: int) -> nn.Module:
    model = half.wrap()
    optimizer = optimizer_of(model)
    for i, (x, y) in enumerate(epochs(half.loader(), feed), 1):
        with without_exchange(model, "no_sync", keeps=i % accumulate > 0):
            loss = cross_entropy(model(x), y)
            (loss / accumulate).backward()
        half.log(loss, len(x))
        if i % accumulate == 0:
            step(optimizer)
    return model


def a_sum(half: Half, feed: str, accumulate: int) -> nn.Module:
    model = half.wrap(loss="sum")
    optimizer = torch.optim.SGD(model.parameters(), lr=SMALL, momentum=0.9)
    for i, (x, y) in enumerate(epochs(half.loader(), feed), 1):
        with without_exchange(model, "no_sync", keeps=i % accumulate > 0):
            loss = cross_entropy(model(x), y, reduction="sum")
            loss.backward()
        half.log(loss / len(x), len(x))
        if i % accumulate == 0:
            step(optimizer)
    return model


def a_global_mean(half: Half, feed: str, accumulate: int) -> nn.Module:
    """Divide by the tokens of all workers, and undo DDP's average, as large trainers do."""
    model = half.wrap(loss="global")
    optimizer = optimizer_of(model)
    window: list[Any] = []
    for batch in epochs(half.loader(), feed):
        window.append(batch)
        if len(window) < accumulate:
            continue
        num_tokens = sum_over_workers(sum(tokens_in(y) for _, y in window))
        for j, (x, y) in enumerate(window, 1):
            with without_exchange(model, "no_sync", keeps=j < accumulate):
                loss = loss_over_tokens(model(x), y)
                (loss / num_tokens * NUM_WORKERS).backward()
            half.log(loss / len(x), len(x))
        step(optimizer)
        window = []
    return model


def weighed(half: Half, feed: str, accumulate: int) -> nn.Module:
    """Weigh means over tokens, so that the gradient is that of all tokens of the window."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    window: list[Any] = []
    for batch in epochs(half.loader(), feed):
        window.append(batch)
        if len(window) < accumulate:
            continue
        in_window = sum(tokens_in(y) for _, y in window)
        for j, (x, y) in enumerate(window, 1):
            with without_exchange(model, "no_sync", keeps=j < accumulate):
                loss = loss_over_tokens(model(x), y) / tokens_in(y)
                half.weigh(loss, tokens_in(y), in_window).backward()
            half.log(loss * tokens_in(y) / len(x), len(x))
        step(optimizer)
        window = []
    return model


def with_class_weights(half: Half, feed: str) -> nn.Module:
    """Weigh a mean whose samples weigh by their class: its count is the sum of those weights."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    for x, y in epochs(half.loader(), feed):
        loss = cross_entropy(model(x), y, weight=CLASS_WEIGHTS)
        count = int(CLASS_WEIGHTS[y].sum())
        half.weigh(loss, count, count).backward()
        half.log(loss * count / len(x), len(x))
        step(optimizer)
    return model


def inside_forward(half: Half, feed: str, accumulate: int) -> nn.Module:
    model = half.wrap(Losing())
    optimizer = optimizer_of(model)
    for i, (x, y) in enumerate(epochs(half.loader(), feed), 1):
        with without_exchange(model, "flag", keeps=i % accumulate > 0):
            loss = model(x, y)
            (loss / accumulate).backward()
        half.log(loss, len(x))
        if i % accumulate == 0:
            step(optimizer)
    return model


def with_penalty(half: Half, feed: str, accumulate: int) -> nn.Module:
    """Add a penalty on the parameters, which does not depend on the batch."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    for i, (x, y) in enumerate(epochs(half.loader(), feed), 1):
        with without_exchange(model, "no_sync", keeps=i % accumulate > 0):
            penalty = torch.stack([p.square().sum() for p in model.parameters()]).sum()
            loss = cross_entropy(model(x), y) + 0.01 * penalty
            (loss / accumulate).backward()
        half.log(loss, len(x))
        if i % accumulate == 0:
            step(optimizer)
    return model


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize(
    "loop", [a_mean, a_sum, a_global_mean, inside_forward, with_penalty],
    ids=lambda loop: loop.__name__,
)  # fmt: skip
def test_losses_train_as_in_the_stock_script(workers, loop, feed, accumulate):
    same_as_stock(workers, loop, feed=feed, accumulate=accumulate)


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("feed", FEEDS)
def test_means_over_tokens_train_as_if_weighed_by_hand(workers, feed, accumulate):
    same_as_stock(workers, weighed, feed=feed, accumulate=accumulate)


@pytest.mark.parametrize("feed", FEEDS)
def test_means_over_classes_train_as_if_weighed_by_hand(workers, feed):
    same_as_stock(workers, with_class_weights, feed=feed)


def loss_module(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = nn.CrossEntropyLoss(reduction="sum")(outputs, y)
    return loss


def loss_function(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, y, reduction="sum")


def loss_of_log_softmax(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.nll_loss(F.log_softmax(outputs, 1), y, reduction="sum")


SUMS = {"module": loss_module, "function": loss_function, "nll": loss_of_log_softmax}


def a_sum_unsaid(kind: str, settings: dict[str, Any]) -> int:
    """Train on sums without saying so, and return the number of iterations."""
    half = Balanced()
    model = half.wrap(**settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=SMALL)
    iterations = 0
    try:
        for x, y in epochs(half.loader(), num_epochs=1):
            SUMS[kind](model(x), y).backward()
            step(optimizer)
            iterations += 1
    finally:
        half.close()
    return iterations


UNEQUAL: tuple[dict[str, Any], ...] = ({}, {"mode": "static", "shares": [1, 3]})
EQUAL = ({"mode": "off"}, {"mode": "observe"})


@pytest.mark.parametrize("settings", UNEQUAL, ids=["balanced", "static"])
@pytest.mark.parametrize("kind", SUMS)
def test_sum_that_nobody_declared_is_refused(workers, kind, settings):
    failures = workers.failures(a_sum_unsaid, timeout=TIMEOUT, kind=kind, settings=settings)
    assert [failure.kind for failure in failures] == ["InvalidSetting"] * NUM_WORKERS
    assert all('loss="sum"' in failure.message for failure in failures)


@pytest.mark.parametrize("settings", EQUAL, ids=["off", "observe"])
def test_sum_is_no_matter_where_sizes_stay_even(workers, settings):
    assert (
        workers.run(a_sum_unsaid, timeout=TIMEOUT, kind="function", settings=settings) == [10] * 2
    )


@pytest.mark.parametrize("settings", UNEQUAL, ids=["balanced", "static"])
def test_sum_that_was_declared_is_not_refused(workers, settings):
    given = {**settings, "loss": "sum"}
    assert workers.run(a_sum_unsaid, timeout=TIMEOUT, kind="module", settings=given) == [10] * 2


def wrong_kind() -> None:
    Balanced().wrap(loss="median")


def test_unknown_kind_of_loss_is_refused(workers):
    failures = workers.failures(wrong_kind, timeout=TIMEOUT)
    assert [failure.kind for failure in failures] == ["InvalidSetting"] * NUM_WORKERS
    assert all("median" in failure.message for failure in failures)
