"""A total that changes on schedule: a balanced script trains on the slices of a stock one."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from evenstep.core import Decision, Ints, View
from evenstep.core.split import split_proportional
from evenstep.core.stock_order import stock_order
from evenstep.pytorch import Balancer
from tests.pytorch.setup import data, net, parameters

pytestmark = pytest.mark.distributed

SAMPLES = 150
SCHEDULE = {4: 32, 9: 10}
"""The totals after 16, each with the iteration from which it holds, in mid-epoch."""


@dataclass(frozen=True)
class Changing:
    """A policy whose sizes are in other proportions in every iteration, for any total."""

    uses_speeds: ClassVar[bool] = False

    def init(self, num_workers: int) -> None:
        pass

    def plan(self, view: View, state: None) -> tuple[Decision, None]:
        shares = np.array([1.0, 1 + view.reports.iteration % 5])
        return Decision(split_proportional(view.total, shares, view.limits), "changing"), None

    def remap(self, state: None, keep: Ints) -> None:
        pass


def stock(num_iterations=14):
    """Train on halves of the slices, as DDP does; return the mean losses and the parameters."""
    model = DistributedDataParallel(net(torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    samples, labels = data(SAMPLES, torch.float64)[:]
    losses: list[float] = []
    epoch, offset, total = 0, 0, 16
    for k in range(num_iterations):
        total = SCHEDULE.get(k, total)
        order = torch.from_numpy(stock_order(SAMPLES, 3, epoch))
        mine = order[offset : offset + total][dist.get_rank() :: 2]
        loss = cross_entropy(model(samples[mine]), labels[mine])
        summed = loss.detach().clone()
        dist.all_reduce(summed)
        losses.append(summed.item() / 2)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        offset += total
        if offset >= SAMPLES:
            epoch, offset = epoch + 1, 0
    return losses, parameters(model)


def balanced(num_iterations=14, num_workers=0, is_weighed=False, stop=None, state=None, **loading):
    """Train on the slices, with unequal sizes; return the mean losses, parameters, and a state."""
    model = DistributedDataParallel(net(torch.float64))
    balancer = Balancer(model, 16, policy=Changing(), summary=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    source = data(SAMPLES, torch.float64)
    loader = balancer.loader(source, seed=3, num_workers=num_workers, **loading)
    if state is not None:
        state = torch.load(io.BytesIO(state))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        balancer.load_state_dict(state["balancer"])
    losses: list[float] = []
    while balancer.iteration < num_iterations:
        for samples, labels in loader:
            loss = cross_entropy(model(samples), labels)
            losses.append(balancer.mean(loss))
            weighed = balancer.weigh(loss, len(samples)) if is_weighed else loss
            weighed.backward()
            optimizer.step()
            optimizer.zero_grad()
            balancer.total = SCHEDULE.get(balancer.iteration, balancer.total)
            if balancer.iteration in (num_iterations, stop):
                break
        if balancer.iteration == stop:
            break
    saved = {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(), "balancer": balancer.state_dict(),
    }  # fmt: skip
    balancer.close()
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    return losses, parameters(model), buffer.getvalue()


@pytest.mark.parametrize(
    "how",
    [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}, {"is_weighed": True}],
    ids=str,
)
def test_losses_and_parameters_are_those_of_a_stock_script_with_these_totals(workers, how):
    for (losses, found, _), (stock_losses, wanted) in zip(
        workers.run(balanced, **how), workers.run(stock), strict=True
    ):
        assert losses == pytest.approx(stock_losses, rel=0, abs=1e-12)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("stop", [3, 6])
def test_checkpoint_continues_with_its_total_where_it_was_made(workers, stop):
    (before, _, state), _ = workers.run(balanced, stop=stop)
    assert torch.load(io.BytesIO(state))["loader"]["offset"] == {3: 48, 6: 128}[stop]
    (after, found, _), _ = workers.run(balanced, state=state)
    (losses, wanted), _ = workers.run(stock)
    assert before + after == pytest.approx(losses, rel=0, abs=1e-12)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def lengths() -> list[Any]:
    """Return len(loader) before and after the total changes, and the lengths of batches."""
    model = DistributedDataParallel(net(torch.float64))
    balancer = Balancer(model, 16, mode="static", shares=[1, 3], summary=False)
    loader = balancer.loader(data(SAMPLES, torch.float64))
    found: list[Any] = [len(loader)]
    for samples, labels in loader:
        cross_entropy(model(samples), labels).backward()
        found.append(len(samples))
        if balancer.iteration == 2:
            balancer.total = 40
            found.append(f"{len(loader)} iterations")
    balancer.close()
    return found


def test_length_is_that_of_an_epoch_that_goes_on_with_the_total(workers):
    first, second = workers.run(lengths)
    # 32 of 150 samples, then 40, 40 and 38 of them.
    assert first == [10, 4, 4, "5 iterations", 10, 10, 9]
    assert second == [10, 12, 12, "5 iterations", 30, 30, 29]


def different_totals(totals):
    model = DistributedDataParallel(net(torch.float64))
    balancer = Balancer(model, 16, policy=Changing(), summary=False)
    try:
        for samples, labels in balancer.loader(data(SAMPLES, torch.float64)):
            if balancer.iteration == 1:
                balancer.total = totals[balancer.worker]
            cross_entropy(model(samples), labels).backward()
    finally:
        balancer.close()


@pytest.mark.parametrize("totals", [(32, 34), (16, 32)])
def test_workers_that_set_different_totals_stop(workers, totals):
    for failure in workers.failures(different_totals, totals=totals):
        assert failure.kind == "DivergedPlans"
