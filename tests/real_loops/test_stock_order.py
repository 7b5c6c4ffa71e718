"""The loss curve of a stock DDP script and that of the balanced one lie on each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from evenstep.pytorch import Balancer
from tests.pytorch.setup import cycle, data, net, parameters

pytestmark = pytest.mark.distributed

TOTAL, EPOCHS, SEED = 16, 3, 5
SIZES = ((3, 13), (12, 4), (8, 8), (1, 15), (11, 5))


def stock_loader(num_samples: int, drops: tuple[bool, bool], shuffle: bool) -> DataLoader[Any]:
    """Return the loader of a stock script; `drops` is drop_last of its sampler and of itself."""
    made = data(num_samples, torch.float64)
    sampler: Any = DistributedSampler(made, shuffle=shuffle, seed=SEED, drop_last=drops[0])
    return DataLoader(made, TOTAL // 2, sampler=sampler, drop_last=drops[1])


def train(loader: Any, model: DistributedDataParallel, mean: Any) -> tuple[list[float], Any, int]:
    """Train as a stock script does; return the mean losses, the parameters and len(loader)."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for samples, labels in loader:
            loss = cross_entropy(model(samples), labels)
            losses.append(mean(loss))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return losses, parameters(model), len(loader)


def mean_over_workers(loss: torch.Tensor) -> float:
    summed = loss.detach().clone()
    dist.all_reduce(summed)
    return summed.item() / dist.get_world_size()


def stock(num_samples, drops=(False, False), shuffle=True):
    model = DistributedDataParallel(net(torch.float64))
    return train(stock_loader(num_samples, drops, shuffle), model, mean_over_workers)


def balanced(num_samples, drops=(False, False), shuffle=True, is_given=False, **settings):
    model = DistributedDataParallel(net(torch.float64))
    balancer = Balancer(model, TOTAL, policy=cycle(*SIZES), summary=False)
    source: Any = data(num_samples, torch.float64)
    if is_given:
        source = stock_loader(num_samples, drops, shuffle)
    elif not drops[0]:
        settings = {"seed": SEED, "shuffle": shuffle, "drop_last": drops[1], **settings}
    else:
        settings = {"seed": SEED, "shuffle": shuffle, "pad": "truncate", **settings}
    try:
        return train(balancer.loader(source, **settings), model, balancer.mean)
    finally:
        balancer.close()


def require_equal(results: Iterable[Any], expected: Iterable[Any]) -> None:
    for (losses, found, length), (stock_losses, wanted, stock_length) in zip(
        results, expected, strict=True
    ):
        assert length == stock_length
        assert losses == pytest.approx(stock_losses, rel=0, abs=1e-12)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("is_given", [False, True], ids=["data set", "DataLoader"])
def test_losses_and_parameters_are_those_of_the_stock_script(workers, is_given, num_workers):
    # 101 samples: no multiple of the workers, of a batch, nor of the total.
    expected = workers.run(stock, num_samples=101)
    assert expected[0][2] == 7
    found = workers.run(balanced, num_samples=101, is_given=is_given, num_workers=num_workers)
    require_equal(found, expected)


@pytest.mark.parametrize(
    ("drops", "shuffle"),
    [((True, False), True), ((False, True), True), ((False, False), False)],
    ids=["the sampler drops", "the loader drops", "not shuffled"],
)
@pytest.mark.parametrize("is_given", [False, True], ids=["data set", "DataLoader"])
def test_the_same_for_what_is_dropped_and_without_shuffling(workers, is_given, drops, shuffle):
    case = {"num_samples": 101, "drops": drops, "shuffle": shuffle}
    require_equal(workers.run(balanced, is_given=is_given, **case), workers.run(stock, **case))


def test_without_padding_the_last_iteration_differs(workers):
    (losses, _, _), _ = workers.run(stock, num_samples=101)
    (found, _, length), _ = workers.run(balanced, num_samples=101, pad=False)
    assert length == 7
    assert found[:6] == pytest.approx(losses[:6], rel=0, abs=1e-12)
    assert abs(found[6] - losses[6]) > 1e-6
