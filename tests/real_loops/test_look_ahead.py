"""Loops that fetch batches before the ones they train on: each batch keeps its own sizes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from torch import nn
from torch.nn.functional import cross_entropy

from evenstep.core import Decision, View
from tests.pytorch.setup import Cycle
from tests.real_loops.harness import (
    EPOCHS,
    FEEDS,
    ITERATIONS,
    TABLE,
    TIMEOUT,
    Balanced,
    Half,
    copied,
    endless,
    epochs,
    optimizer_of,
    same_as_stock,
    same_as_stock_or_refused,
    step,
    without_exchange,
)

pytestmark = [pytest.mark.distributed]

ACCUMULATE = (1, 2, 4)
"""Batches per optimizer step: ten iterations of an epoch are whole windows, and are not."""
WAYS = ("no_sync", "flag")
"""How gradients are kept: with the context of DDP, or its attribute, set by hand."""


def feeding(half: Half, feed: str, accumulate: int = 1, way: str = "no_sync") -> nn.Module:
    """Train on batches that come from a feed, and exchange gradients after some of them."""
    model, loader = half.wrap(), half.loader()
    optimizer = optimizer_of(model)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(FEEDS[feed](loader), 1):
            is_last = i % accumulate == 0 or i == len(loader)
            with without_exchange(model, way, keeps=not is_last):
                loss = cross_entropy(model(x), y)
                (loss / accumulate).backward()
            half.log(loss, len(x))
            if is_last:
                step(optimizer)
    return model


def placing(half: Half) -> nn.Module:
    """Train on batches out of their order, which the balanced loader itself copies to a device."""
    model, loader = half.wrap(), half.loader()
    if not half.is_stock:
        loader.place_with(copied)
    optimizer = optimizer_of(model)
    for x, y in epochs(loader, "out_of_order"):
        loss = cross_entropy(model(x), y)
        loss.backward()
        half.log(loss, len(x))
        step(optimizer)
    return model


def loading(half: Half, feed: str) -> nn.Module:
    """Load batches in processes, which are ahead themselves, by an older plan."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    for x, y in epochs(half.loader(num_workers=1), feed):
        loss = cross_entropy(model(x), y)
        loss.backward()
        half.log(loss, len(x))
        step(optimizer)
    return model


def fetching_before_backward(
    half: Half, accumulate: int, way: str, transfers: bool = False
) -> nn.Module:
    """Fetch the next batch between the forward and the backward pass of the current one."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    batches = endless(half.loader())
    x, y = next(batches)
    for _ in range(EPOCHS * ITERATIONS // accumulate):
        for micro in range(accumulate):
            with without_exchange(model, way, keeps=micro < accumulate - 1):
                size = len(x)
                loss = cross_entropy(model(x), y)
                x, y = copied(next(batches)) if transfers else next(batches)
                (loss / accumulate).backward()
            half.log(loss, size)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        step(optimizer)
    return model


def fetching_windows(half: Half, accumulate: int, way: str, transfers: bool = False) -> nn.Module:
    """Fetch all batches of a window first; the last window of an epoch may be shorter."""
    model, loader = half.wrap(), half.loader()
    optimizer = optimizer_of(model)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        source = iter(loader)
        while window := list(itertools.islice(source, accumulate)):
            for i, batch in enumerate(window, 1):
                x, y = copied(batch) if transfers else batch
                with without_exchange(model, way, keeps=i < len(window)):
                    loss = cross_entropy(model(x), y)
                    (loss / len(window)).backward()
                half.log(loss, len(x))
            step(optimizer)
    return model


def over_epoch_ends(half: Half, feed: str, accumulate: int = 1) -> nn.Module:
    """Fetch ahead from an endless loader, so that batches of two epochs are there at a time."""
    model = half.wrap()
    optimizer = optimizer_of(model)
    batches = FEEDS[feed](endless(half.loader()))
    for _ in range(EPOCHS * ITERATIONS // accumulate):
        for micro in range(accumulate):
            x, y = next(batches)
            with without_exchange(model, "no_sync", keeps=micro < accumulate - 1):
                loss = cross_entropy(model(x), y)
                (loss / accumulate).backward()
            half.log(loss, len(x))
        step(optimizer)
    return model


def logging_means(half: Half, feed: str) -> nn.Module:
    """Log the mean over all workers by the means of the script itself."""
    model, loader = half.wrap(), half.loader()
    optimizer = optimizer_of(model)
    for x, y in epochs(loader, feed):
        loss = cross_entropy(model(x), y)
        loss.backward()
        mean = half.mean(loss.detach())
        # Of all workers: the difference to the mean over the logged samples must be rounding.
        half.log(mean, len(x))
        step(optimizer)
    return model


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("accumulate", ACCUMULATE)
@pytest.mark.parametrize("feed", [feed for feed in FEEDS if "order" not in feed])
def test_batches_fetched_ahead_train_as_in_the_stock_script(workers, feed, accumulate, way):
    same_as_stock(workers, feeding, feed=feed, accumulate=accumulate, way=way)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_batches_may_be_trained_on_in_another_order(workers, accumulate):
    same_as_stock(workers, feeding, feed="out_of_order", accumulate=accumulate)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_copies_in_another_order_are_attributed_or_refused(workers, accumulate):
    same_as_stock_or_refused(workers, feeding, feed="out_of_order_copied", accumulate=accumulate)


@pytest.mark.parametrize("feed", ["in_turn", "one_ahead", "one_ahead_copied"])
def test_batches_of_loading_processes_train_as_in_the_stock_script(workers, feed):
    same_as_stock(workers, loading, feed=feed)


@pytest.mark.parametrize("transfers", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("accumulate", ACCUMULATE)
def test_next_batch_may_be_fetched_before_the_backward_pass(workers, accumulate, way, transfers):
    same_as_stock(
        workers, fetching_before_backward, accumulate=accumulate, way=way, transfers=transfers
    )


@pytest.mark.parametrize("transfers", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("accumulate", [2, 3, 4])
def test_a_window_of_batches_may_be_fetched_first(workers, accumulate, way, transfers):
    same_as_stock(workers, fetching_windows, accumulate=accumulate, way=way, transfers=transfers)


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize(
    "feed", ["in_turn", "one_ahead", "one_ahead_copied", "two_ahead", "two_ahead_copied"]
)
def test_endless_loader_may_be_ahead_over_the_end_of_an_epoch(workers, feed, accumulate):
    same_as_stock(workers, over_epoch_ends, feed=feed, accumulate=accumulate)


@pytest.mark.parametrize("feed", ["in_turn", "one_ahead", "one_ahead_copied", "two_ahead"])
def test_mean_loss_is_that_of_the_batch_trained_on(workers, feed):
    same_as_stock(workers, logging_means, feed=feed)


@dataclass(frozen=True)
class NotingCycle(Cycle):
    """Goes through a table of sizes, and notes which batch sizes the workers report."""

    noted: list[list[int]] = field(default_factory=list)

    def plan(self, view: View, state: None) -> tuple[Decision, None]:
        if view.reports.iteration:
            self.noted.append(view.reports.batch_sizes.tolist())
        return super().plan(view, state)


def reports(feed: str) -> tuple[list[list[int]], list[int]]:
    """Return the reported sizes of all workers, and the sizes that this worker trained on."""
    half, policy = Balanced(), NotingCycle(TABLE)
    model = half.wrap(policy=policy)
    for x, y in epochs(half.loader(), feed):
        cross_entropy(model(x), y).backward()
        half.log(0.0, len(x))
        model.zero_grad()
    half.close()
    return policy.noted, [size for _, size in half.losses]


@pytest.mark.parametrize("feed", [feed for feed in FEEDS if feed != "out_of_order_copied"])
def test_reports_are_about_the_batches_trained_on(workers, feed):
    (noted, mine), (_, others) = workers.run(reports, timeout=TIMEOUT, feed=feed)
    trained_on = [list(sizes) for sizes in zip(mine, others, strict=True)]
    assert len(trained_on) == EPOCHS * ITERATIONS
    # A report without a time has a size of 0; most must have one, or there is nothing to plan by.
    pairs = [
        pair
        for report in zip(noted, trained_on, strict=False)
        for pair in zip(*report, strict=True)
    ]
    assert [pair for pair in pairs if pair[0] not in (0, pair[1])] == []
    assert sum(got > 0 for got, _ in pairs) >= len(trained_on)


def test_batches_that_the_loader_places_are_known_by_their_new_memory(workers):
    same_as_stock(workers, placing)
