"""Silent workers, broken connections, and a manager that is killed."""

import random
import re
import socket
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from evenstep.core.held_plans import Held
from evenstep.errors import ManagerUnreachable, Refused, Unplanned
from evenstep.manager.access import format_address
from evenstep.manager.connection import ServiceConnection, Where
from tests.manager.managers import PATIENCE, boundary, refused, running, said, together, until

EMA = {"policy": "proportional", "predictor": "ema"}


def cut(client):
    """Break a client's connection as a network would, so that it does not reconnect by itself."""
    client._membership.close()


def test_silent_worker_leaves_its_share_to_the_others_and_comes_back(manager, job):
    a, b, c = (
        manager.connect(job, w, workers=3, total=60, lease=0.5 if w == "c" else 20.0, **EMA)
        for w in "abc"
    )
    boundary([a, b, c], 0)
    cut(c)
    # c is silent: the others are released, and get all of the total.
    plans = boundary([a, b], 1, 10.0, 10.0)
    assert [plan.sizes.tolist() for plan in plans] == [[30, 30]] * 2
    assert a.workers == ("a", "b")
    again = manager.connect(job, "c", iteration=1)
    assert again.iteration == 3
    boundary([a, b], 2, 10.0, 10.0)
    plans = boundary([a, b, again], 3, 10.0, 10.0, None)
    assert [plan.total for plan in plans] == [60] * 3
    assert again.workers == ("a", "b", "c") and again.batch_size > 0
    for client in (a, b, again):
        client.leave()


def test_worker_that_computes_for_longer_than_its_lease_stays(manager, job):
    a, b = (
        manager.connect(job, w, workers=2, total=60, lease=0.3 if w == "b" else 20.0) for w in "ab"
    )
    boundary([a, b], 0)
    time.sleep(1.0)
    boundary([a, b], 1)
    assert (a.workers, a.newest) == (("a", "b"), 0)
    a.leave(), b.leave()


def test_worker_that_waits_for_longer_than_its_lease_stays(manager, job):
    a, b = (
        manager.connect(job, w, workers=2, total=60, lease=0.3 if w == "a" else 20.0) for w in "ab"
    )
    boundary([a, b], 0)

    def late():
        time.sleep(1.0)
        return b.boundary(said("b", 1))

    plans = together(lambda: a.boundary(said("a", 1)), late)
    assert [plan.iteration for plan in plans] == [0, 0]
    assert (a.workers, a.newest) == (("a", "b"), 0)
    a.leave(), b.leave()


def test_worker_reconnects_by_itself_and_stays_a_member(manager, job):
    a, b = (manager.connect(job, w, workers=2, total=60) for w in "ab")
    boundary([a, b], 0)
    a._membership.connection._socket.shutdown(2)
    # Training does not wait: this is the last plan.
    assert a.boundary(said("a", 1)).number == 0
    until(lambda: a.connected, "a new connection")
    boundary([a, b], 2)
    assert a.workers == ("a", "b")
    a.leave(), b.leave()


def test_worker_that_comes_back_is_not_waited_for_where_it_went_by_meanwhile(manager, job):
    """As in a gradient exchange, where b waits for a, which waits for the report of b."""
    a, b = (manager.connect(job, w, workers=2, total=60) for w in "ab")
    boundary([a, b], 0)
    make_entry, passed = b._membership._entry, threading.Event()

    def entry_and_then_a_boundary(reuse):
        entry = make_entry(reuse)
        if not passed.is_set():
            assert b.boundary(said("b", 1)).number == 0
            passed.set()
        return entry

    b._membership._entry = entry_and_then_a_boundary
    b._membership.drop(None)
    a.boundary(said("a", 1))
    assert passed.is_set() and a.failure is None
    boundary([a, b], 2)
    assert (a.failure, b.failure, b.workers) == (None, None, ("a", "b"))
    a.leave(), b.leave()


def test_client_takes_its_place_from_a_dead_connection_that_the_manager_still_holds(manager, job):
    a, b = (manager.connect(job, w, workers=2, total=60) for w in "ab")
    boundary([a, b], 0)
    # A connection that is dead without the other end knowing, as after a network failure.
    dead, a._membership.connection = a._membership.connection, None
    with a._membership.changed:
        a._membership.changed.notify()
    until(lambda: a.connected, "a new connection")
    boundary([a, b], 1)
    assert (a.workers, a.newest) == (("a", "b"), 0)
    dead.close()
    boundary([a, b], 2)
    assert a.failure is None
    a.leave(), b.leave()


def test_same_report_twice_is_harmless_and_a_different_one_is_refused(manager, job):
    a, b = (manager.connect(job, w, workers=2, total=60, timeout=0.2, **EMA) for w in "ab")
    together(lambda: a.boundary(said("a", 0)), lambda: b.boundary(said("b", 0)))
    for _ in range(2):
        a.boundary(said("a", 1, 10.0))
        assert "nothing was heard from b" in str(a.failure)
    a.boundary(said("a", 1, 11.0))
    assert "two different reports" in str(a.failure)
    assert b.boundary(said("b", 1, 50.0)).sizes.tolist() == [10, 50]
    a.leave(), b.leave()


def test_refused_report_is_not_sent_again(manager, job, caplog):
    a, b = (manager.connect(job, w, workers=2, total=60, blocking=False, **EMA) for w in "ab")
    boundary([a, b], 0)
    a.boundary(said("a", 1, 10.0))
    until(lambda: "nothing was heard from b" in str(a.failure), "a wait for b")
    a.boundary(said("a", 1, 11.0))
    until(lambda: "two different reports" in str(a.failure), "a refusal")
    time.sleep(0.3)
    (told,) = [r.message for r in caplog.records if "two different" in r.message]
    assert re.fullmatch(rf"worker a of job {job}: worker a .*\biteration 1, got two .*", told)
    boundary([a, b], 2, 10.0, 50.0)
    until(lambda: manager.status()[job]["iteration"] == 3, "the next boundary")
    a.close(), b.close()


def test_late_report_gets_the_plan_that_was_made(manager, job):
    a, b = (manager.connect(job, w, workers=2, total=60, timeout=0.2, **EMA) for w in "ab")
    together(lambda: a.boundary(said("a", 0)), lambda: b.boundary(said("b", 0)))
    b.boundary(said("b", 1, 50.0))
    # a reports for 2 and has passed 1; then it says something about 1 after all.
    a.boundary(said("a", 2, 10.0))
    assert b.boundary(said("b", 2, 50.0)) is not None
    late = a.boundary(said("a", 1, 99.0))
    assert late.total == 60 and a.failure is None
    a.leave(), b.leave()


def test_report_from_far_ahead_does_not_stall_the_others(manager, job):
    a, b = (manager.connect(job, w, workers=2, total=60, timeout=0.3, **EMA) for w in "ab")
    together(lambda: a.boundary(said("a", 0)), lambda: b.boundary(said("b", 0)))
    a.boundary(said("a", 10**12, 10.0))
    for k in range(1, 20):
        b.boundary(said("b", k, 50.0))
        assert b.failure is None
    assert b.batch_size + a.batch_size == 60 or b.batch_size > 0
    a.leave(), b.leave()


def test_manager_that_was_killed_goes_on_where_it_was(tmp_path):
    with running("--state", tmp_path / "state", log=tmp_path / "log") as manager:
        clients = [manager.connect("j", w, workers=2, total=60, **EMA) for w in "ab"]
        boundary(clients, 0)
        before = boundary(clients, 1, 10.0, 20.0)
        time.sleep(1.5)
        # Made after the last save: the manager will not know of it, but the workers do.
        boundary(clients, 2, 20.0, 10.0)
        newest = max(client.newest for client in clients)
        manager.kill()
        # Training continues with the last plan, at once.
        started = time.monotonic()
        for k in range(3, 30):
            plans = boundary(clients, k, 20.0, 10.0)
            assert [plan.number for plan in plans] == [newest] * 2
        assert time.monotonic() - started < 10
        manager.start()
        assert manager.said.endswith(", 1 job recovered\n")
        until(lambda: all(client.connected for client in clients), "both to reconnect")
        after = boundary(clients, 30, 20.0, 10.0)
        assert [plan.total for plan in (*before, *after)] == [60] * 4
        assert all(client.workers == ("a", "b") for client in clients)
        assert after[0].number == after[1].number > newest
        assert after[0].sizes.tolist() == after[1].sizes.tolist()
        # The learned state is restored: the plan is not even.
        assert after[0].sizes.tolist() != [30, 30]
        for client in clients:
            client.leave()


def test_manager_without_state_is_made_again_by_its_workers(tmp_path):
    with running(log=tmp_path / "log") as manager:
        clients = [manager.connect("j", w, workers=2, total=60, **EMA) for w in "ab"]
        boundary(clients, 0)
        boundary(clients, 1, 10.0, 20.0)
        manager.kill()
        boundary(clients, 2, 10.0, 20.0)
        manager.start()
        until(lambda: all(client.connected for client in clients), "both to reconnect")
        plans = boundary(clients, 3, 10.0, 20.0)
        assert plans[0].number == plans[1].number > 1
        assert plans[0].sizes.tolist() == plans[1].sizes.tolist()
        for client in clients:
            client.leave()


def test_worker_that_is_missing_after_a_restart_is_not_waited_for_longer_than_its_lease(tmp_path):
    with running("--state", tmp_path / "state", log=tmp_path / "log") as manager:
        a, b = (
            manager.connect("j", w, workers=2, total=60, lease=0.5 if w == "b" else 20.0)
            for w in "ab"
        )
        boundary([a, b], 0)
        manager.stop()
        cut(b)
        manager.start()
        until(lambda: a.connected, "a to reconnect")
        until(lambda: a.boundary(said("a", a.iteration)).sizes.tolist() == [60], "a plan without b")
        assert a.workers == ("a",)
        a.leave()


def test_next_run_of_a_job_begins_with_what_was_learned(tmp_path):
    with running("--state", tmp_path / "state", log=tmp_path / "log") as manager:
        for first in (0, 5):
            clients = [manager.connect("j", w, workers=2, total=60, **EMA) for w in "ab"]
            plans = boundary(clients, 0)
            assert plans[0].sizes.tolist() == ([30, 30] if first == 0 else [10, 50])
            boundary(clients, 1, 10.0, 50.0)
            boundary(clients, 2, 10.0, 50.0)
            for client in clients:
                client.leave()
            manager.stop()
            manager.start()


def test_workers_that_went_back_to_a_checkpoint_go_on_from_there(manager, job):
    clients = [manager.connect(job, w, workers=2, total=60, **EMA) for w in "ab"]
    for k in range(20):
        boundary(clients, k, *((10.0, 20.0) if k else ()))
    for client in clients:
        client.close()
    until(lambda: not any(w["connected"] for w in manager.status()[job]["workers"]), "the losses")
    again = [manager.connect(job, w, iteration=12) for w in "ab"]
    plans = boundary(again, 12)
    assert [plan.sizes.tolist() for plan in plans] == [[20, 40]] * 2
    plans = boundary(again, 13, 20.0, 10.0)
    assert plans[0].sizes.tolist() != [20, 40]
    for client in again:
        client.leave()


def test_interrupted_run_continues_with_the_workers_that_return(manager, job):
    clients = [manager.connect(job, w, workers=2, total=60, lease=0.4) for w in "ab"]
    boundary(clients, 0)
    for client in clients:
        cut(client)
    until(lambda: not manager.status()[job]["running"], "the end of the run")
    alone = manager.connect(job, "b", iteration=1, lease=0.4)
    assert alone.boundary(said("b", 1)).sizes.tolist() == [60]
    alone.leave()


def test_damaged_files_are_set_aside_and_the_others_are_recovered(tmp_path):
    state = tmp_path / "state"
    with running("--state", state, log=tmp_path / "log") as manager:
        clients = [manager.connect("good", w, workers=2, total=60) for w in "ab"]
        boundary(clients, 0)
        for client in clients:
            client.close()
        manager.stop()
        content = (state / "good.job.npz").read_bytes()
        damaged = {
            "cut": content[: len(content) // 2],
            "empty": b"",
            "foreign": b"something else",
            "renamed": content,
        }
        for name, broken in damaged.items():
            (state / f"{name}.job.npz").write_bytes(broken)
        (state / ".good.job.npz.1234").write_bytes(b"a write that was torn")
        for _ in range(2):
            manager.start()
            assert manager.said.endswith(", 1 job recovered\n")
            assert list(manager.status()) == ["good"]
            manager.stop()
        for name, broken in damaged.items():
            assert not (state / ".good.job.npz.1234").exists()
            aside = f"{name}.job.npz.damaged-1"
            assert manager.log.count(f"is now {aside}") == 1
            assert (state / aside).read_bytes() == broken


@pytest.mark.parametrize("blocking", [False, True])
def test_no_two_plans_in_an_iteration_whatever_is_killed(tmp_path, blocking):
    """Workers that choose by the marks of the plans they hold, as a gradient exchange lets them."""
    num_workers, num_iterations = 4, 300
    seed = 5
    rng = random.Random(seed)
    barrier = threading.Barrier(num_workers)
    marks = [np.zeros(0, dtype=np.float32)] * num_workers
    used: list[dict[int, tuple[int, list[int]]]] = [{} for _ in range(num_workers)]

    with running("--state", tmp_path / "state", log=tmp_path / "log") as manager:

        def train(i):
            client = manager.connect(
                "j", f"w{i}", workers=num_workers, total=64, blocking=blocking, timeout=1.0, **EMA
            )
            speeds = random.Random(seed + i)
            for k in range(num_iterations):
                report = said(f"w{i}", k, speeds.uniform(10, 40), 16) if k else said(f"w{i}", 0)
                marks[i] = client.show(report)
                barrier.wait(20.0)
                plan = client.choose(np.stack(marks))
                used[i][k] = (plan.number, plan.sizes.tolist())
                barrier.wait(20.0)
                time.sleep(0.005)
            client.leave()

        def disturb():
            # A worker without any plan must skip iterations, and the workers of this loop cannot.
            until(lambda: all(used), "the first plan of every worker")
            for _ in range(3):
                time.sleep(rng.uniform(0.2, 0.5))
                manager.kill()
                time.sleep(rng.uniform(0.0, 0.2))
                manager.start()

        results = together(*(lambda i=i: train(i) for i in range(num_workers)), disturb)
        assert results == [None] * (num_workers + 1)
    for k in range(num_iterations):
        plans = [plans_of[k] for plans_of in used]
        assert plans == [plans[0]] * num_workers
        assert sum(plans[0][1]) == 64
    assert len({number for number, _ in used[0].values()}) > 3


def test_workers_that_agree_keep_the_last_common_plan_when_the_manager_dies(tmp_path):
    with running(log=tmp_path / "log") as manager:
        clients = [manager.connect("j", w, workers=2, total=60, agree=True, **EMA) for w in "ab"]
        boundary(clients, 0)
        common = boundary(clients, 1, 10.0, 20.0)
        # It has answered a and dies: a holds a plan that b does not.
        clients[0]._holding.keep(Held(replace(common[0], number=9), ("a", "b")))
        manager.kill()
        for k in (2, 3):
            plans = boundary(clients, k, 10.0, 20.0)
            assert [plan.number for plan in plans] == [common[0].number] * 2
        for client in clients:
            client.close()


def test_agreement_that_a_worker_has_gone_past_fails_at_once(manager, job):
    a, b = (manager.connect(job, w, workers=2, total=60, timeout=0.2) for w in "ab")
    together(lambda: a.boundary(said("a", 0)), lambda: b.boundary(said("b", 0)))
    a.boundary(said("a", 5))
    # Its agreement on 1 was made without the manager, so b need not wait for it.
    b.boundary(said("b", 1))
    started = time.monotonic()
    assert b.agree(1, timeout=PATIENCE).number == 0
    assert re.search(r"not agree .*\biteration 1\b", str(b.failure))
    assert time.monotonic() - started < PATIENCE
    a.leave(), b.leave()


def test_worker_that_comes_back_holds_the_plans_that_others_may_still_use(manager, job):
    a, b = (manager.connect(job, w, workers=2, total=60, **EMA) for w in "ab")
    boundary([a, b], 0)
    for k, speed in enumerate((10.0, 20.0, 30.0), start=1):
        boundary([a, b], k, speed, 20.0)
    cut(b)
    until(lambda: not manager.status()[job]["workers"][1]["connected"], "the loss")
    again = manager.connect(job, "b", iteration=4)
    held, others = (
        [(one.plan.number, one.plan.sizes.tolist()) for one in client.held] for client in (again, a)
    )
    assert held[: again.newest] == others[: a.newest]
    assert len(held[: again.newest]) > 1
    a.leave(), again.leave()


def test_worker_without_a_plan_does_not_agree_on_one(manager, job):
    a = manager.connect(job, "a", workers=2, total=60, timeout=0.1, agree=True)
    with pytest.raises(Unplanned, match="has no plan yet: the plan of iteration 0 must come"):
        a.boundary(said("a", 0))
    a.leave()


def test_lost_worker_of_one_job_does_not_slow_another(manager, job):
    broken = [manager.connect(f"{job}-x", w, workers=2, total=8, lease=5.0) for w in "ab"]
    boundary(broken, 0)
    cut(broken[1])
    stuck = threading.Thread(target=lambda: broken[0].boundary(said("a", 1)))
    stuck.start()
    clients = [manager.connect(job, w, workers=2, total=8) for w in "ab"]
    for k in range(30):
        boundary(clients, k)
    assert stuck.is_alive(), "the other job must still wait"
    for client in (*clients, broken[0]):
        client.close()
    stuck.join(5.0)


def test_name_of_a_worker_that_is_alive_is_not_taken_over(manager, job):
    a = manager.connect(job, "a", workers=1, total=8, lease=0.3)
    time.sleep(0.8)
    with pytest.raises(Refused, match="is already connected"):
        manager.connect(job, "a")
    a.leave()


def test_two_managers_cannot_share_their_state(tmp_path):
    with running("--state", tmp_path / "state", log=tmp_path / "log"):
        said_so = refused("--listen", "127.0.0.1:0", "--state", tmp_path / "state")
        assert re.search(rf"another manager .*{re.escape(str(tmp_path / 'state'))}", said_so)


def test_manager_cannot_listen_where_another_does(manager):
    message = refused("--listen", manager.address)
    assert f"cannot listen on {manager.address}: Address already in use" in message
    assert "`evenstep manager status`" in message
    assert "another port with --listen 127.0.0.1:PORT" in message


def test_manager_that_does_not_run_says_how_to_start_one():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = format_address(*listening.getsockname())
    with pytest.raises(ManagerUnreachable) as raised:
        ServiceConnection(Where(address), timeout=10.0)
    assert str(raised.value) == (
        f"the manager at {address}: Connection refused; start one with `evenstep manager`"
    )
