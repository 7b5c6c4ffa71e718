"""Coordinators: the same reports give the same plans, whatever carries them."""

import threading

import numpy as np
import pytest

from evenstep import InProcessCoordinator, Planner, Report, Session, Usage, connect
from evenstep.policies import make_policy
from evenstep.predictors import make_predictor
from tests.manager.managers import running

WORKERS = ("w0", "w1", "w2")
TOTAL = 96
NUM_ITERATIONS = 12
SETUPS = [("proportional", "ema"), ("equal_finish", "best_of"), ("stepwise", "median")]


@pytest.fixture(scope="module")
def manager(tmp_path_factory):
    with running(log=tmp_path_factory.mktemp("conformance") / "log") as started:
        yield started


def in_process(manager, policy, predictor):
    planner = Planner(WORKERS, TOTAL, make_policy(policy), make_predictor(predictor, len(WORKERS)))
    coordinator = InProcessCoordinator(Session(planner), timeout=20.0)
    return dict.fromkeys(WORKERS, coordinator)


def through_the_manager(manager, policy, predictor):
    settings = {"workers": len(WORKERS), "total": TOTAL, "policy": policy, "predictor": predictor}
    job = f"{policy}-{predictor}"
    return {w: connect(manager.address, job, w, timeout=20.0, **settings) for w in WORKERS}


def train(coordinators):
    """Let workers of different speeds train, and return the plans that each has used."""
    used: dict[str, list[tuple[int, int, list[int]]]] = {worker: [] for worker in WORKERS}

    def work(i, worker):
        rng = np.random.default_rng(i)
        size = seconds = None
        for k in range(NUM_ITERATIONS):
            usage = Usage(cpu=float(rng.uniform(0.5, 1)), memory=0.5)
            plan = coordinators[worker].boundary(Report(worker, k, size, seconds, usage))
            used[worker].append((plan.number, plan.iteration, plan.sizes.tolist()))
            size = int(plan.sizes[i])
            seconds = size / (100.0 + 80 * i) * float(rng.uniform(0.95, 1.05))

    threads = [threading.Thread(target=work, args=item) for item in enumerate(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    return used


@pytest.mark.parametrize(("policy", "predictor"), SETUPS)
def test_same_reports_same_plans_through_every_coordinator(manager, policy, predictor):
    expected = train(in_process(manager, policy, predictor))
    assert [len(plans) for plans in expected.values()] == [NUM_ITERATIONS] * len(WORKERS)
    clients = through_the_manager(manager, policy, predictor)
    assert train(clients) == expected
    for client in clients.values():
        client.leave()
    assert len({number for number, _, _ in expected["w0"]}) > 1
