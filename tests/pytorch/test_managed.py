"""Plans of a manager in a DDP training: exact, balanced, and the same on all workers always."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from evenstep import runlog
from tests.pytorch.managed import TOTAL, managed, trained
from tests.pytorch.setup import balanced, data, distance, model_of, net, parameters

pytestmark = pytest.mark.distributed


def fit(balancer):
    """Train two epochs, with tails, and return the parameters and the sizes of this worker."""
    model = model_of(balancer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sizes = []
    for _ in range(2):
        for samples, labels in balancer.loader(data(TOTAL * 6 + 7, torch.float64)):
            sizes.append(len(samples))
            cross_entropy(model(samples), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    return parameters(model), sizes


def plain():
    with balanced(TOTAL, net(torch.float64), mode="off") as balancer:
        return fit(balancer)


def fit_managed(address, name, blocking):
    model = net(torch.float64)
    with managed(address, name, model=model, client={"blocking": blocking}) as (balancer, _):
        return fit(balancer)


@pytest.mark.parametrize("blocking", [True, False])
def test_parameters_are_those_of_plain_bsp(workers, manager, job, blocking):
    expected, _ = workers.run(plain)[0]
    for fitted, sizes in workers.run(
        fit_managed, address=manager.address, name=job, blocking=blocking
    ):
        assert distance(fitted, expected) < 1e-12
        assert len(set(sizes)) > 2


def balance(address, name, num_iterations, blocking=True, pause=0.0, client=None, **settings):
    chosen = {"blocking": blocking, **(client or {})}
    with managed(address, name, client=chosen, **settings) as (balancer, coordinator):
        used = trained(balancer, num_iterations, pause=pause)
        return used, coordinator.batch_size, balancer.iteration


@pytest.mark.parametrize("blocking", [True, False])
def test_sizes_follow_the_speeds_by_name_not_by_rank(workers, manager, job, blocking, tmp_path):
    path = tmp_path / "run.jsonl"
    results = workers.run(
        balance, count=3, address=manager.address, name=job, num_iterations=25, blocking=blocking,
        pause=0.0 if blocking else 0.01, log=str(path),
    )  # fmt: skip
    used, _, iteration = results[0]
    assert all(theirs == used for theirs, *_ in results)
    assert [sum(sizes) for _, sizes in used] == [TOTAL] * 25
    assert used[0] == (0, [20, 20, 20])
    assert used[-1][1] == [10, 30, 20]
    assert [size for _, size, _ in results] == [10, 30, 20]
    assert iteration == 25
    log = runlog.read(path)
    assert log.header.job == job
    assert log.header.workers == ("w9", "w8", "w7")
    plans = log.events_of("plan")
    assert [event.plan for event in plans] == sorted({number for number, _ in used})
    assert plans[0].reason == "start"
    assert all(event.reason for event in plans)
    assert log.matrix("batch_sizes").tolist() == [sizes for _, sizes in used]
