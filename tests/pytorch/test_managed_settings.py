"""A balancer with a coordinator: whose settings hold, checkpoints, limits, accumulation."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

import evenstep
from evenstep.core.coordinator import InProcessCoordinator
from evenstep.core.session import Session
from evenstep.errors import StateFileError
from evenstep.policies import Even
from tests.pytorch.managed import TOTAL, managed, trained
from tests.pytorch.setup import Indices, balanced, cycle, data, exchange, model_of, net
from tests.pytorch.test_balancer import Emulated

pytestmark = pytest.mark.distributed


def refused(address, job_name, client=None, batch_norm=False, **settings):
    model = net(batch_norm=batch_norm)
    with managed(address, job_name, client=client, model=model, **settings):
        pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"total": 64}, "total must be that of job {}, 60, got 64"),
        ({"policy": "even"}, "policy must be that of job {}, 'equal_finish', got 'even'"),
        ({"policy": cycle((30, 30))}, "policy must be that of job {}, 'equal_finish', got 'Cycle("),
        ({"predictor": "ema"}, "predictor must be that of job {}, 'best_of', got 'ema'"),
        ({"minimum": 2}, "minimum must be that of job {}, 1, got 2"),
        ({"granularity": 4}, "granularity must be that of job {}, 1, got 4"),
        ({"name": "somebody"}, "name must be that of job {}, 'w9', got 'somebody'"),
        ({"mode": "observe"}, "mode must be 'balanced' with a coordinator"),
        ({"mode": "off"}, "mode must be 'balanced' with a coordinator"),
        ({"mode": "static", "shares": [1, 2]}, "mode must be 'balanced' with a coordinator"),
        ({"straggler": "bench"}, "a minimum of 0, got 'balanced' and 1"),
        ({"straggler": "restart"}, "straggler must be 'advise' or 'bench' with a coordinator"),
        ({"maximum": 20}, "caps of 2 workers add up to 40, less than the total 60"),
        ({"batch_norm": True}, "minimum of job {} must be at least 2, as the model has BatchNorm"),
        (
            {"batch_norm": True, "client": {"minimum": 0}},
            "granularity must be at least 2 where workers may be benched",
        ),
        ({"client": {"agree": True}}, "must be connected without agree=True"),
    ],
)
def test_settings_that_contradict_the_job_are_refused(workers, manager, job, settings, message):
    failures = workers.failures(refused, address=manager.address, job_name=job, **settings)
    assert {failure.kind for failure in failures} <= {"InvalidSetting", "InfeasibleLimits"}
    assert message.format(job) in failures[0].message


def with_another_total(address, job_name):
    with managed(address, job_name) as (balancer, _):
        balancer.total = TOTAL
        balancer.total = 64


def test_total_of_a_job_cannot_be_changed(workers, manager, job):
    for failure in workers.failures(with_another_total, address=manager.address, job_name=job):
        assert failure.kind == "InvalidSetting"
        assert f"total must stay that of job {job}, 60, as" in failure.message
        assert "got 64" in failure.message


def without_enough_workers(address, name):
    with managed(address, name, client={"workers": 3}):
        pass


def test_number_of_workers_must_be_that_of_the_job(workers, manager, job):
    for failure in workers.failures(without_enough_workers, address=manager.address, name=job):
        assert failure.message == f"workers must be that of job {job}, 3, got 2"


def with_other_jobs(address, name):
    with managed(address, f"{name}-{dist.get_rank()}"):
        pass


def one_without(address, name):
    if dist.get_rank() == 0:
        with managed(address, name):
            pass
    else:
        with balanced(TOTAL):
            pass


@pytest.mark.parametrize("mistake", [with_other_jobs, one_without])
def test_all_workers_must_have_a_client_of_one_job(workers, manager, job, mistake):
    for failure in workers.failures(mistake, address=manager.address, name=job):
        assert failure.message.startswith(
            f"job of the coordinator must be the same on all workers, got '{job}"
        )


def with_another_coordinator():
    session = Session(evenstep.Planner(["a"], TOTAL, Even()))
    with balanced(TOTAL, coordinator=InProcessCoordinator(session)):
        pass


def test_other_coordinators_are_refused(workers):
    for failure in workers.failures(with_another_coordinator, count=1):
        assert "coordinator must be the client of a manager" in failure.message
        assert failure.message.endswith("got InProcessCoordinator")


def resumed(address, name):
    """Train, save on worker 0 only, and go on with new clients; return iterations and sizes."""
    with managed(address, name) as (balancer, _):
        used = trained(balancer, 20)
        # Worker 0 alone takes the reports, and waits for nobody.
        states: list[Any] = [balancer.state_dict() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(states, src=0)
    (state,) = states
    with managed(address, name, client={"iteration": 20}) as (balancer, client):
        first = balancer.iteration, balancer.plan.sizes.tolist()
        balancer.load_state_dict(state)
        again = trained(balancer, 4)
        with pytest.raises(StateFileError) as refusal:
            balancer.load_state_dict(state)
    return used[-1], state, first, again, balancer.iteration, client.iteration, str(refusal.value)


def test_training_goes_on_where_checkpoint_and_client_say(workers, manager, job):
    for last, state, first, again, iteration, reached, refusal in workers.run(
        resumed, count=3, address=manager.address, name=job
    ):
        assert state["iteration"] == 20
        assert state["workers"] == ["w9", "w8", "w7"]
        assert state["sizes"] == last[1] == [10, 30, 20]
        # The manager has what was learned, and so has the checkpoint's plan.
        assert first == (20, [10, 30, 20])
        assert [sizes for _, sizes in again] == [[10, 30, 20]] * 4
        assert (iteration, reached) == (24, 24)
        assert "must not be before that which the job has reached, 23, got 20" in refusal
        assert "connect again, with iteration=20" in refusal


def foreign(address, name, state):
    with managed(address, name) as (balancer, _):
        balancer.load_state_dict(state)


def test_state_of_another_kind_or_total_is_refused(workers, manager, job):
    for state, message in (
        ({"iteration": 3, "total": TOTAL, "workers": ["a"], "balancer": {}}, "workers and sizes"),
        ({"iteration": 3, "total": 8, "workers": ["a"], "sizes": [8]}, "that of the checkpoint, 8"),
    ):
        for failure in workers.failures(foreign, address=manager.address, name=job, state=state):
            assert failure.kind == "StateFileError"
            assert message in failure.message


def with_maximum(address, name, micro_batches):
    settings = {"maximum": [40, 25, 40], "micro_batches": micro_batches}
    with managed(address, name, **settings) as (balancer, _):
        used = []
        model = model_of(balancer)
        for samples, _ in balancer.loader(data(TOTAL * 15)):
            used.append(balancer.plan.sizes.tolist())
            balancer.backward(lambda piece: model(piece).sum(), samples)
        return used


@pytest.mark.parametrize(
    ("micro_batches", "expected"), [(False, [12, 25, 23]), (True, [10, 30, 20])]
)
def test_limits_of_workers_reach_the_manager(workers, manager, job, micro_batches, expected):
    for used in workers.run(
        with_maximum, count=3, address=manager.address, name=job, micro_batches=micro_batches
    ):
        assert np.abs(np.array(used[-1]) - expected).max() <= 1
        assert max(sizes[1] for sizes in used) <= 25 or micro_batches


def with_batch_norm(address, name, minimum, granularity, speed):
    timer = Emulated([speed, 300.0][dist.get_rank()])
    client = {"minimum": minimum, "granularity": granularity}
    with managed(address, name, client=client, model=net(batch_norm=True), timer=timer) as (
        balancer, _,
    ):  # fmt: skip
        used, samples = [], []
        for batch, _ in balancer.loader(data(TOTAL * 15)):
            used.append(balancer.plan.sizes.tolist())
            samples.append(len(batch))
            model_of(balancer)(batch).sum().backward()
        return used, samples, balancer.minimum


def test_worker_that_holds_all_up_is_benched_by_the_manager(workers, manager, job):
    (used, samples, minimum), _ = workers.run(
        with_batch_norm, address=manager.address, name=job, minimum=0, granularity=2, speed=0.01
    )
    assert minimum == 0
    assert used[-1] == [0, TOTAL]
    assert samples[-1] == 2


def test_minimum_of_the_job_is_kept(workers, manager, job):
    (used, samples, minimum), _ = workers.run(
        with_batch_norm, address=manager.address, name=job, minimum=2, granularity=1, speed=1.0
    )
    assert minimum == 2
    assert used[-1] == [2, TOTAL - 2]
    assert samples[-1] == 2


def accumulated(address, name, blocking):
    with managed(address, name, client={"blocking": blocking}) as (balancer, _):
        used = []
        for i, _ in enumerate(balancer.loader(Indices(TOTAL * 40)), start=1):
            used.append((balancer.plan.number, balancer.plan.sizes.tolist()))
            with nullcontext() if i % 2 == 0 else model_of(balancer).no_sync():
                exchange(balancer)
        return used, balancer.iteration


@pytest.mark.parametrize("blocking", [True, False])
def test_batches_that_are_accumulated_are_one_report(workers, manager, job, blocking):
    results = workers.run(accumulated, address=manager.address, name=job, blocking=blocking)
    assert results[0] == results[1]
    used, iteration = results[0]
    assert iteration == 20
    # Between two exchanges there is nothing new to agree on.
    assert used[::2] == used[1::2]
    assert used[-1][1] == [15, 45]
