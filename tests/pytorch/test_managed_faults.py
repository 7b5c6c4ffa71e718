"""A manager that fails: training continues, and no two workers ever use different plans."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from evenstep.core import Plan
from evenstep.core.held_plans import Held
from tests.manager.managers import running, until
from tests.pytorch.managed import SPEEDS, TOTAL, Lossy, Scripted, connect, managed, trained
from tests.pytorch.setup import balanced
from tests.pytorch.test_balancer import Emulated

pytestmark = pytest.mark.distributed

QUICK = {"policy": "proportional", "predictor": "ema:alpha=0.9"}


def common(results):
    """Return the plans that were used, which must have been the same on all workers."""
    first, *others = results
    for worker, theirs in enumerate(others, start=1):
        assert theirs == first, f"worker {worker} used other plans than worker 0"
    assert {sum(sizes) for _, sizes in first} == {TOTAL}
    return first


def up():
    """Do nothing: what comes next must not wait for the workers to start."""


def through_an_outage(address, name, blocking, folder):
    """Train before, during and after an outage, in which the workers' speeds change."""
    signals = Path(folder)

    def before(k):
        if k in (12, 24):
            (signals / f"{'kill' if k == 12 else 'start'}-{dist.get_rank()}").touch()
            until(
                (signals / ("killed" if k == 12 else "started")).exists,
                "the manager's signal",
            )
            if k == 24:
                until(lambda: client.connected, "coming back")
                timer._speed = SPEEDS[::-1][dist.get_rank()]

    timer = Emulated(SPEEDS[dist.get_rank()])
    settings = {"blocking": blocking, **QUICK}
    with managed(address, name, client=settings, timer=timer) as (balancer, client):
        return trained(balancer, 48, before, pause=0.0 if blocking else 0.01)


@pytest.mark.parametrize(("blocking", "keeps"), [(True, True), (False, False)])
def test_killed_manager_leaves_the_last_plan_and_plans_come_again(
    workers, tmp_path, blocking, keeps
):
    workers.run(up, count=3)
    signals = tmp_path / "signals"
    signals.mkdir()
    options = ("--state", tmp_path / "state") if keeps else ()
    with running(*options, log=tmp_path / "log") as manager:

        def fail():
            until((signals / "kill-0").exists, "the twelfth iteration")
            if keeps:
                until(lambda: list((tmp_path / "state").iterdir()), "saving")
            manager.kill()
            (signals / "killed").touch()
            until((signals / "start-0").exists, "the twenty-fourth iteration")
            manager.start()
            (signals / "started").touch()

        failing = threading.Thread(target=fail)
        failing.start()
        used = common(
            workers.run(
                through_an_outage, count=3, address=manager.address, name="outage",
                blocking=blocking, folder=str(signals),
            )
        )  # fmt: skip
        failing.join()
    assert used[11][1] == [10, 30, 20]
    assert used[14:25] == used[14:15] * 11
    assert used[-1][1] == [20, 30, 10]
    assert used[-1][0] > used[24][0]


def with_losses(address, name, blocking, seed):
    """Train with speeds that change all the time, while answers to some workers get lost."""
    rank = dist.get_rank()
    draws = random.Random(seed)
    lost = [{k for k in range(8, 40) if draws.random() < 0.3} for _ in range(3)]
    # One worker hears nothing for longer than plans are kept; then only one hears the last word.
    lost[1] |= set(range(12, 26))
    for worker, last in enumerate((43, 42, 42)):
        lost[worker] |= set(range(last, 50))
    timer = Emulated(SPEEDS[rank])

    def before(k):
        timer._speed = SPEEDS[rank] * random.Random(100 * k + rank).uniform(0.5, 2.0)

    with connect(address, name, blocking=blocking, policy="proportional",
                 predictor="memoryless") as client:  # fmt: skip
        lossy = Lossy(client, lambda k: k in lost[rank])
        with balanced(TOTAL, timer=timer, coordinator=lossy) as balancer:
            return trained(balancer, 56, before, pause=0.0 if blocking else 0.01)


@pytest.mark.parametrize("blocking", [True, False])
def test_answers_that_reach_some_workers_only_divide_nobody(workers, tmp_path, blocking):
    with running(log=tmp_path / "log") as manager:
        used = common(
            workers.run(
                with_losses, count=3, address=manager.address, name="lossy", blocking=blocking,
                seed=3,
            )
        )  # fmt: skip
    numbers = [number for number, _ in used]
    # Never back, no plan of those that one worker did not get, and on again afterwards.
    assert numbers == sorted(numbers)
    assert len(set(numbers)) > 8
    assert len(set(numbers[14:26])) == 1
    assert len(set(numbers[44:50])) == 1
    assert numbers[-1] > numbers[49]


def silence(address, name, folder):
    signals = Path(folder)
    taken = []

    def before(k):
        taken.append(time.monotonic())
        if k == 4 and dist.get_rank() == 0:
            (signals / "hang").touch()
            until((signals / "hung").exists, "hanging")
        if k == 12 and dist.get_rank() == 0:
            (signals / "continue").touch()

    with managed(address, name, client={"timeout": 0.2, **QUICK}) as (balancer, client):
        used = trained(balancer, 20, before)
        until(lambda: client.connected, "coming back")
        return used, np.diff(taken)


def test_hanging_manager_is_waited_for_once(workers, tmp_path):
    workers.run(up)
    with running(log=tmp_path / "log") as manager:

        def hang():
            until((tmp_path / "hang").exists, "the fourth iteration")
            manager.process.send_signal(signal.SIGSTOP)
            (tmp_path / "hung").touch()
            until((tmp_path / "continue").exists, "the twelfth iteration")
            manager.process.send_signal(signal.SIGCONT)

        hanging = threading.Thread(target=hang)
        hanging.start()
        results = workers.run(silence, address=manager.address, name="silent", folder=str(tmp_path))
        hanging.join()
    used = common([used for used, _ in results])
    assert used[5:13] == used[5:6] * 8
    # A worker whose wait times out loses its connection: one long iteration, not eight.
    taken = results[0][1][4:12]
    assert sorted(taken)[-2] < max(taken) / 3


def begun_without(address, name, blocking, process):
    """Train after the manager has ended, before the first plan was asked for."""
    with connect(address, name, blocking=blocking, timeout=0.2) as client:
        dist.barrier()
        if dist.get_rank() == 0:
            os.kill(process, signal.SIGKILL)
            until(lambda: not client.connected, "noticing")
        dist.barrier()
        with balanced(TOTAL, coordinator=client) as balancer:
            return trained(balancer, 5)


@pytest.mark.parametrize("blocking", [True, False])
def test_training_begins_evenly_where_no_plan_ever_comes(workers, tmp_path, blocking):
    with running(log=tmp_path / "log") as manager:
        used = common(
            workers.run(
                begun_without, address=manager.address, name="none", blocking=blocking,
                process=manager.process.pid,
            )
        )  # fmt: skip
    assert used == [(0, [30, 30])] * 5


def scripted(holdings, blocking, lag=0):
    """Train with a coordinator that holds the given plans, iteration by iteration."""
    name = f"w{dist.get_rank()}"
    coordinator = Scripted(name, dist.get_world_size(), blocking, holdings[dist.get_rank()])
    with balanced(TOTAL, coordinator=coordinator) as balancer:
        balancer._loop._lag = lag
        return trained(balancer, len(holdings[0]))


def held(number, *sizes, workers=("w0", "w1")):
    return Held(Plan(number, 0, np.array(sizes)), workers)


LARGE = 2**24


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # Numbers that a float32 does not tell apart.
        ([held(LARGE + 1, 10, 50), held(LARGE, 20, 40)], [held(LARGE, 20, 40)], (LARGE, [20, 40])),
        ([held(2**52 + 1, 9, 51)], [held(2**52 + 1, 9, 51)], (2**52 + 1, [9, 51])),
        # A number given twice, to different plans.
        ([held(7, 10, 50)], [held(7, 50, 10)], (1, [25, 35])),
        ([held(7, 10, 50), held(6, 1, 59)], [held(7, 5, 55), held(6, 1, 59)], (6, [1, 59])),
        # None in common: one has lost all that the other keeps.
        ([held(30, 10, 50)], [held(9, 50, 10)], (1, [25, 35])),
        ([held(30, 10, 50)], [], (1, [25, 35])),
        # Older than the plan in use.
        ([held(0, 10, 50)], [held(0, 10, 50)], (1, [25, 35])),
        # For other workers, or with their sizes in another order.
        ([held(8, 60, workers=("w0",))], [held(8, 60, workers=("w0",))], (1, [25, 35])),
        ([held(8, 50, 10, workers=("w1", "w0"))], [held(8, 10, 50)], (8, [10, 50])),
    ],
)
@pytest.mark.parametrize("blocking", [True, False])
def test_newest_plan_that_all_hold_is_used_or_else_the_last_one(
    workers, first, second, expected, blocking
):
    start = held(1, 25, 35)
    # What is held when iteration k begins; it takes one exchange more where nobody waits.
    holdings = [[[start], [start], mine, mine, mine] for mine in (first, second)]
    used = common(workers.run(scripted, holdings=holdings, blocking=blocking))
    assert used[:2] == [(1, [25, 35])] * 2
    assert used[-1] == expected


@pytest.mark.parametrize(("blocking", "lag", "expected"), [
    (True, 0, [0, 1, 2, 3, 4, 5, 6, 7]),
    (False, 0, [0, 0, 1, 2, 3, 4, 5, 6]),
    (True, 1, [0, 0, 1, 2, 3, 4, 5, 6]),
    (False, 1, [0, 0, 0, 0, 1, 2, 3, 4]),
])  # fmt: skip
def test_how_old_a_plan_is_when_it_is_used(workers, blocking, lag, expected):
    # With a lag, as on a device that runs ahead, reports are taken one iteration later.
    plans = [held(k, 10 + k, 50 - k) for k in range(8)]
    holdings = [[plans[: k + 1][::-1] for k in range(8)]] * 2
    used = common(workers.run(scripted, holdings=holdings, blocking=blocking, lag=lag))
    assert [number for number, _ in used] == expected
