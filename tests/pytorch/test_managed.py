"""Plans of a manager in a DDP training: exact, balanced, and the same on all workers always."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.functional import cross_entropy

from evenstep import runlog
from tests.pytorch.managed import TOTAL, Scripted, managed, trained
from tests.pytorch.setup import (
    Indices,
    balanced,
    data,
    distance,
    exchange,
    model_of,
    net,
    note_reports,
    parameters,
)

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


def test_marks_of_plans_travel_beside_a_hook_that_owns_the_exchange(workers, manager, job):
    results = workers.run(
        balance, address=manager.address, name=job, num_iterations=20, blocking=False, pause=0.01,
        comm_hook=(None, default_hooks.allreduce_hook),
    )  # fmt: skip
    assert results[0][0] == results[1][0]
    assert results[0][0][-1][1] == [15, 45]


def by_tokens(address, name, policy):
    lengths = np.random.default_rng(5).integers(1, 9, TOTAL * 20)
    with managed(address, name, client={"policy": policy}) as (balancer, _):
        loader = balancer.loader(Indices(len(lengths)), counts=lengths)
        counts = []
        for indices, _ in loader:
            counts.append(int(lengths[indices].sum()))
            exchange(balancer)
        return counts


def test_batches_are_balanced_by_counts_too(workers, manager, job):
    first, second = workers.run(by_tokens, address=manager.address, name=job, policy="equal_finish")
    assert second[-1] / first[-1] == pytest.approx(3, rel=0.1)


def test_policy_of_a_job_that_does_not_go_with_counts_is_refused(workers, manager, job):
    for failure in workers.failures(
        by_tokens, address=manager.address, name=job, policy="stepwise"
    ):
        assert failure.kind == "InvalidSetting"
        assert "stepwise" in failure.message


def waited(pause):
    """Wait for a coordinator in every iteration; return the times that were reported."""
    coordinator = Scripted(f"w{dist.get_rank()}", dist.get_world_size(), True, [[]], pause)
    with balanced(TOTAL, coordinator=coordinator) as balancer:
        noted = note_reports(balancer)
        trained(balancer, 6)
        return [float(reports.times[dist.get_rank()]) for reports, _ in noted]


def test_waiting_for_a_plan_is_not_work(workers):
    pause = 0.4
    for times in workers.run(waited, pause=pause):
        assert np.nanmedian(times) < pause / 2
