"""The in-process coordinator: threads that trade reports for plans."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from evenstep.core import Report
from evenstep.core.coordinator import InProcessCoordinator
from evenstep.core.planner import Planner
from evenstep.core.session import Session
from evenstep.errors import InvalidReport, MembershipError, Unplanned
from evenstep.policies import Proportional
from evenstep.predictors import Ema
from tests.figures import numbers_in

SPEEDS = {"a": 10.0, "b": 20.0, "c": 30.0, "d": 40.0}


@pytest.fixture(autouse=True)
def no_threads_left_over():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


def session_of(workers):
    return Session(Planner(list(workers), 120, Proportional(), Ema(len(workers), alpha=1.0)))


def said(plan):
    return plan.number, plan.iteration, plan.sizes.tolist()


def train(coordinator, worker, position, iterations, start=0):
    """Run a worker's loop: report, take the plan, work; return the plans as they came."""
    plans = []
    size = time = None
    for k in range(start, start + iterations):
        plan = coordinator.boundary(Report(worker, k, size, time))
        plans.append(said(plan))
        size = int(plan.sizes[position])
        # The speed swings, so that there is a new plan at every boundary.
        time = size / (SPEEDS[worker] * (1 + (k % 2) * position))
    return plans


def wait_until(happened):
    deadline = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_all_workers_get_the_same_plans():
    coordinator = InProcessCoordinator(session_of(SPEEDS))
    with ThreadPoolExecutor(len(SPEEDS)) as pool:
        loops = [
            pool.submit(train, coordinator, worker, position, iterations=50)
            for position, worker in enumerate(SPEEDS)
        ]
    first, *others = [loop.result() for loop in loops]
    assert others == [first] * 3
    assert [number for number, _, _ in first] == list(range(50))
    assert {sum(sizes) for _, _, sizes in first} == {120}
    # Speeds of 10, 2 x 20, 3 x 30 and 4 x 40 in odd iterations, plain ones in even ones.
    assert first[48:] == [(48, 48, [4, 16, 36, 64]), (49, 49, [12, 24, 36, 48])]


def test_silent_worker_is_named_when_the_plan_does_not_come():
    coordinator = InProcessCoordinator(session_of("abc"), timeout=0.05)
    with pytest.raises(Unplanned) as late:
        coordinator.boundary(Report("a", 0))
    assert numbers_in(str(late.value)) == [0, 0.05]
    assert str(late.value).endswith(" b, c")


def test_who_gave_up_can_ask_again():
    session = session_of("ab")
    coordinator = InProcessCoordinator(session, timeout=0.05)
    with pytest.raises(Unplanned):
        coordinator.boundary(Report("a", 0))
    assert said(coordinator.boundary(Report("b", 0))) == (0, 0, [60, 60])
    assert said(coordinator.boundary(Report("a", 0))) == (0, 0, [60, 60])
    assert session.iteration == 1


def test_leave_releases_those_who_wait():
    session = session_of("abc")
    coordinator = InProcessCoordinator(session)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(coordinator.boundary, Report(worker, 0)) for worker in "ab"]
        wait_until(lambda: session.waiting_for == ("c",))
        assert [future.done() for future in waiting] == [False, False]
        coordinator.leave("c")
        plans = [said(future.result(timeout=10)) for future in waiting]
    assert plans == [(1, 0, [60, 60])] * 2


def test_who_joins_is_in_the_plans_from_its_first_boundary_on():
    coordinator = InProcessCoordinator(session_of("ab"))
    first = coordinator.join("c")
    with ThreadPoolExecutor(3) as pool:
        loops = [
            pool.submit(train, coordinator, worker, position, iterations, start)
            for worker, position, iterations, start in (
                ("a", 0, 6, 0),
                ("b", 1, 6, 0),
                ("c", 2, 5, first),
            )
        ]
    a, b, c = [loop.result() for loop in loops]
    assert first == 1
    assert a == b
    assert a[1:] == c
    assert [len(sizes) for _, _, sizes in a] == [2, 3, 3, 3, 3, 3]


def test_refused_report_does_not_disturb_who_waits():
    session = session_of("ab")
    coordinator = InProcessCoordinator(session)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(coordinator.boundary, Report("a", 0))
        wait_until(lambda: session.waiting_for == ("b",))
        with pytest.raises(MembershipError):
            coordinator.boundary(Report("x", 0))
        with pytest.raises(InvalidReport):
            coordinator.boundary(Report("a", 0, 8, 1.0))
        assert not waiting.done()
        plan = coordinator.boundary(Report("b", 0))
        assert said(waiting.result(timeout=10)) == said(plan) == (0, 0, [60, 60])
