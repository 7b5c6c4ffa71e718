"""Runs a training loop twice, as a stock script and balanced, and compares the two.

A loop is a function of a `Stock` or `Balanced` half, which makes the DDP model, the loaders and the
log of its losses; the loop itself is the same code in both. The stock half is plain torch, without
anything of Evenstep. The balanced half has sizes that are unequal and change in every iteration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from importlib import import_module
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from evenstep.pytorch import Balancer
from tests.distributed.workers import Failure, Workers
from tests.pytorch.setup import cycle, data, distance, net, parameters

NUM_WORKERS = 2
TOTAL = 16
SAMPLES = 149
"""The sampler pads them to 150: nine iterations of 16 samples and one of 6."""
ITERATIONS = 10
"""Of an epoch."""
EPOCHS = 3
TABLE = ((8, 8), (4, 12), (15, 1), (9, 7), (1, 15), (3, 13), (14, 2))
"""Even sizes at first, as always; seven, so that iterations of different epochs differ."""
TOLERANCE = 1e-12
REFUSALS = {"UnknownBatch", "DivergedPlans"}
"""Errors that say that a batch cannot be attributed to an iteration, or not to one and the same."""
TIMEOUT = 60.0
"""Seconds in which the workers must have run both halves."""

Loop = Any
"""A function that trains in a half and returns the model; the workers find it by its name."""


class Half(ABC):
    """One of the two runs of a loop: what it makes, and what it logs."""

    is_stock: bool

    def __init__(self) -> None:
        self.worker = dist.get_rank()
        self.losses: list[tuple[float, int]] = []
        """The logged losses of this worker, each with the samples that it is a mean over."""
        self.balancer: Any = None

    def log(self, loss: float | torch.Tensor, num_samples: int) -> None:
        self.losses.append((float(torch.as_tensor(loss).detach()), num_samples))

    @abstractmethod
    def wrap(self, inner: nn.Module | None = None, **settings: Any) -> DistributedDataParallel:
        """Return the DDP model, of a small net by default; the settings are a balancer's."""

    @abstractmethod
    def loader(self, dataset: Any = None, shuffle: bool = True, **options: Any) -> Any:
        """Return a loader of this worker's batches; `options` are those of a DataLoader."""

    @abstractmethod
    def weigh(self, loss: torch.Tensor, count: int, in_window: int) -> torch.Tensor:
        """Return the loss to call backward on, if it is a mean over `count` tokens.

        `in_window` is the number of tokens of this worker in all batches of the exchange.
        """

    @abstractmethod
    def mean(self, loss: torch.Tensor) -> float:
        """Return the mean over the samples of all workers, given that over this batch."""

    def close(self) -> None:
        """End the balancer, if there is one."""
        if self.balancer is not None:
            self.balancer.close()


def wrapped(inner: nn.Module | None) -> DistributedDataParallel:
    return DistributedDataParallel(net(torch.float64) if inner is None else inner)


def train_data() -> TensorDataset:
    return data(SAMPLES, torch.float64)


class Stock(Half):
    """The script before anything was changed."""

    is_stock = True

    def wrap(self, inner: nn.Module | None = None, **settings: Any) -> DistributedDataParallel:
        return wrapped(inner)

    def loader(self, dataset: Any = None, shuffle: bool = True, **options: Any) -> Any:
        dataset = train_data() if dataset is None else dataset
        sampler: Any = DistributedSampler(dataset, shuffle=shuffle)
        return DataLoader(dataset, TOTAL // NUM_WORKERS, sampler=sampler, **options)

    def weigh(self, loss: torch.Tensor, count: int, in_window: int) -> torch.Tensor:
        # By hand, so that DDP's average is the mean over all tokens.
        return loss * count * NUM_WORKERS / sum_over_workers(in_window)

    def mean(self, loss: torch.Tensor) -> float:
        return sum_over_workers(float(loss)) / NUM_WORKERS


class Balanced(Half):
    """The script with a balancer."""

    is_stock = False

    def wrap(self, inner: nn.Module | None = None, **settings: Any) -> DistributedDataParallel:
        model = wrapped(inner)
        self.balancer = make_balancer(model, **settings)
        return model

    def loader(self, dataset: Any = None, shuffle: bool = True, **options: Any) -> Any:
        dataset = train_data() if dataset is None else dataset
        return self.balancer.loader(dataset, shuffle=shuffle, **options)

    def weigh(self, loss: torch.Tensor, count: int, in_window: int) -> torch.Tensor:
        weighed: torch.Tensor = self.balancer.weigh(loss, count)
        return weighed

    def mean(self, loss: torch.Tensor) -> float:
        return float(self.balancer.mean(loss))


def make_balancer(*model: Any, **settings: Any) -> Any:
    """Make a balancer whose sizes go through the table, whatever the workers report."""
    given = {"policy": cycle(*TABLE), **settings} if "mode" not in settings else settings
    make: Any = Balancer
    return make(*model, total=TOTAL, summary=False, warm_up=0, **given)


def sum_over_workers(value: float) -> float:
    summed = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(summed)
    return float(summed)


# How a script gets its batches: one by one, or ahead of the one that it trains on.


def copied(batch: Any) -> Any:
    """Copy the tensors of a batch, as a transfer to a device does."""
    if isinstance(batch, torch.Tensor):
        return batch.clone()
    if isinstance(batch, PackedSequence):
        return PackedSequence(batch.data.clone(), *batch[1:])
    if isinstance(batch, dict):
        return {name: copied(value) for name, value in batch.items()}
    return type(batch)(map(copied, batch))


def untouched(batch: Any) -> Any:
    return batch


def in_turn(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches


def one_ahead(batches: Iterable[Any], transfer: Callable[[Any], Any] = untouched) -> Iterator[Any]:
    """Fetch the next batch before the current one is handed out, to know which one is the last."""
    source = iter(batches)
    current = next(source, None)
    while current is not None:
        current = transfer(current)
        following = next(source, None)
        yield current
        current = following


def one_ahead_copied(batches: Iterable[Any]) -> Iterator[Any]:
    return one_ahead(batches, copied)


class Prefetcher:
    """Holds two batches that were transferred already."""

    def __init__(self, batches: Iterable[Any], transfer: Callable[[Any], Any] = untouched) -> None:
        self._source = iter(batches)
        self._transfer = transfer
        self._ready: deque[Any] = deque()
        self._preload()
        self._preload()

    def _preload(self) -> None:
        batch = next(self._source, None)
        if batch is not None:
            self._ready.append(self._transfer(batch))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self._ready:
            raise StopIteration
        batch = self._ready.popleft()
        self._preload()
        return batch


def two_ahead(batches: Iterable[Any]) -> Iterator[Any]:
    return Prefetcher(batches)


def two_ahead_copied(batches: Iterable[Any]) -> Iterator[Any]:
    return Prefetcher(batches, copied)


def all_ahead(batches: Iterable[Any]) -> Iterator[Any]:
    yield from list(batches)


def out_of_order(batches: Iterable[Any]) -> Iterator[Any]:
    """Hand out four batches at a time, the last one first, as a buffer that mixes batches does."""
    source = iter(batches)
    while held := [batch for _, batch in zip(range(4), source, strict=False)]:
        yield from reversed(held)


def out_of_order_copied(batches: Iterable[Any]) -> Iterator[Any]:
    return map(copied, out_of_order(batches))


FEEDS: dict[str, Callable[[Iterable[Any]], Iterator[Any]]] = {
    "in_turn": in_turn,
    "one_ahead": one_ahead,
    "one_ahead_copied": one_ahead_copied,
    "two_ahead": two_ahead,
    "two_ahead_copied": two_ahead_copied,
    "all_ahead": all_ahead,
    "out_of_order": out_of_order,
    "out_of_order_copied": out_of_order_copied,
}


def epochs(loader: Any, feed: str = "in_turn", num_epochs: int = EPOCHS) -> Iterator[Any]:
    """Yield the batches of some epochs, each fetched by itself."""
    for epoch in range(num_epochs):
        loader.sampler.set_epoch(epoch)
        yield from FEEDS[feed](loader)


def endless(loader: Any) -> Iterator[Any]:
    """Yield the batches of one epoch after the other."""
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


# What the bodies of the loops share.


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def without_exchange(model: Any, way: str, keeps: bool) -> Any:
    """Keep the gradients of the passes in this context, in one of two ways, or do not."""
    if way == "no_sync":
        return model.no_sync() if keeps else nullcontext()
    model.require_backward_grad_sync = not keeps
    return nullcontext()


# Both halves, and their comparison.


class Outcome(NamedTuple):
    """What a half ends with on one worker."""

    parameters: torch.Tensor
    losses: list[tuple[float, int]]


def run_half(half: Half, loop: Loop, arguments: dict[str, Any]) -> Outcome:
    try:
        model = loop(half, **arguments)
    finally:
        half.close()
    return Outcome(parameters(model), half.losses)


def run_halves(module: str, name: str, arguments: dict[str, Any]) -> tuple[Outcome, Outcome]:
    """Run a loop of a module as a stock script, and then balanced."""
    loop = getattr(import_module(module), name)
    return run_half(Stock(), loop, arguments), run_half(Balanced(), loop, arguments)


def same_as_stock(workers: Workers, loop: Loop, **arguments: Any) -> None:
    """Check that a loop with balanced batches trains as the stock script does."""
    compare(workers.run(run_halves, timeout=TIMEOUT, **job_of(loop, arguments)))


def same_as_stock_or_refused(workers: Workers, loop: Loop, **arguments: Any) -> None:
    """Check that it does, or that it stops with an error of Evenstep: never that it differs."""
    answers = workers.answers(run_halves, timeout=TIMEOUT, **job_of(loop, arguments))
    failures = [answer for answer in answers if isinstance(answer, Failure)]
    if not failures:
        compare(answers)
        return
    # A worker that waits for one that has stopped fails with an error of the process group.
    assert len(failures) == NUM_WORKERS, "only one worker stopped"
    assert {failure.kind for failure in failures} & REFUSALS, failures


def job_of(loop: Loop, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"module": loop.__module__, "name": loop.__name__, "arguments": arguments}


def compare(answers: list[tuple[Outcome, Outcome]]) -> None:
    """Compare the halves, given what all workers answer."""
    stock, balanced = zip(*answers, strict=True)
    expected = stock[0].parameters
    differences = [distance(outcome.parameters, expected) for outcome in (*stock, *balanced)]
    assert max(differences) <= TOLERANCE, differences
    compare_losses([half.losses for half in stock], [half.losses for half in balanced])


Losses = list[list[tuple[float, int]]]
"""The losses of all workers, each with the samples that it is a mean over."""


def compare_losses(stock: Losses, balanced: Losses) -> None:
    """Compare the means over all samples that each loss was logged for, and their numbers."""
    expected, got = joined(stock), joined(balanced)
    assert [count for _, count in got] == [count for _, count in expected]
    means = torch.tensor([mean for mean, _ in expected], dtype=torch.float64)
    others = torch.tensor([mean for mean, _ in got], dtype=torch.float64)
    assert distance(others, means) <= TOLERANCE
    unequal = [len({count for _, count in logged}) > 1 for logged in zip(*balanced, strict=True)]
    assert sum(unequal) >= ITERATIONS, "the balanced half had equal sizes"
    assert len({count for logged in balanced for _, count in logged}) > 2, "sizes never changed"


def joined(losses: Losses) -> list[tuple[float, int]]:
    counts = [sum(count for _, count in logged) for logged in zip(*losses, strict=True)]
    sums = [sum(loss * count for loss, count in logged) for logged in zip(*losses, strict=True)]
    return [(summed / count, count) for summed, count in zip(sums, counts, strict=True)]
