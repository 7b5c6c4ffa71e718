"""A real manager, and workers that talk to it."""

import gc
import re
import signal
import socket
import struct
import threading
import time
import weakref
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from evenstep.errors import InvalidReport, InvalidSetting, ManagerUnreachable, Refused, Unplanned
from evenstep.manager import wire
from evenstep.manager.background import at_once
from evenstep.manager.client_connection import ClientConnection
from evenstep.manager.connection import VERSION, ServiceConnection, Where
from evenstep.manager.jobs import Jobs
from evenstep.manager.service import Service
from evenstep.manager.wire import types
from tests.manager.managers import boundary, refused, running, said, together, until


def test_workers_get_one_plan_that_fits_their_speeds(manager, job):
    clients = [
        manager.connect(job, f"w{i}", workers=2, total=60, policy="proportional", predictor="ema")
        for i in range(2)
    ]
    first = boundary(clients, 0)
    assert [plan.sizes.tolist() for plan in first] == [[30, 30]] * 2
    second = boundary(clients, 1, 10.0, 20.0)
    assert [(plan.number, plan.iteration, plan.sizes.tolist()) for plan in second] == [
        (1, 1, [20, 40])
    ] * 2
    assert [client.batch_size for client in clients] == [20, 40]
    assert clients[0].workers == ("w0", "w1")
    for client in clients:
        client.leave()


def test_reply_waits_for_the_last_member_and_uses_its_report(manager, job):
    a, b = (
        manager.connect(job, w, workers=2, total=60, policy="proportional", predictor="ema")
        for w in "ab"
    )
    boundary([a, b], 0)
    plans = []
    waiting = threading.Thread(target=lambda: plans.append(a.boundary(said("a", 1, 10.0))))
    waiting.start()
    until(lambda: _reported(manager, job) == {"a": True, "b": False}, "the report of a")
    assert plans == []
    b.boundary(said("b", 1, 50.0))
    waiting.join()
    assert plans[0].sizes.tolist() == [10, 50]
    a.close(), b.close()


def _reported(manager, job):
    return {w["worker"]: w["reported"] for w in manager.status()[job]["workers"]}


def test_job_is_created_on_the_command_line_and_shown(manager, job):
    said_so = manager.command("create", job, "--workers", 2, "--total", 64, "--policy", "even")
    assert said_so == f"job {job}: 2 workers, 64 samples an iteration\n"
    status = manager.status()[job]
    assert (status["running"], status["settings"]["policy"], status["workers"]) == (
        False, "even", [],
    )  # fmt: skip
    assert f"{job}: waiting for 2 workers; total 64, even, best_of" in manager.command("status")
    clients = [manager.connect(job, w) for w in "ab"]
    boundary(clients, 0)
    lines = manager.command("status", job).splitlines()
    assert lines[0].startswith(f"{job}: at iteration 1, plan 0; total 64")
    assert re.fullmatch(r"  a: .*\b32, connected, not reported", lines[1])
    for client in clients:
        client.leave()


def test_job_is_created_on_the_command_line_with_all_its_settings(manager, job):
    manager.command(
        "create", job, "--workers", 2, "--total", 64, "--predictor", "ema", "--minimum", 0,
        "--granularity", 4,
    )  # fmt: skip
    with manager.connect(job, "a", workers=2, total=64, predictor="ema", minimum=0, granularity=4):
        assert manager.status()[job]["settings"] == {
            "workers": 2, "total": 64, "policy": "equal_finish", "predictor": "ema", "minimum": 0,
            "granularity": 4, "elastic": False,
        }  # fmt: skip


@pytest.mark.parametrize(("on_cpus", "policy"), [(False, "equal_finish"), (True, "cautious")])
def test_default_policy_of_a_job_depends_on_what_its_workers_compute_on(
    manager, job, on_cpus, policy
):
    with manager.connect(job, "a", workers=2, total=64, on_cpus=on_cpus) as client:
        assert client.settings.policy == policy
    flag = ["--on-cpus"] if on_cpus else []
    manager.command("create", f"{job}-2", "--workers", 2, "--total", 64, *flag)
    assert manager.status()[f"{job}-2"]["settings"]["policy"] == policy


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--workers", "2"], "--workers"),
        (["create", "j", "--workers", "2", "--total", "8", "--state", "s"], "--state"),
        (["status", "--policy", "even"], "--policy"),
        (["status", "--on-cpus"], "--on-cpus"),
    ],
)
def test_option_that_would_do_nothing_is_refused(words, option):
    assert f"{option} must not be given" in refused(*words)


def test_manager_has_more_connections_than_a_process_is_given_at_first(tmp_path):
    code = (
        "import resource, sys; from resource import RLIMIT_NOFILE as files;"
        "resource.setrlimit(files, (64, resource.getrlimit(files)[1]));"
        "from evenstep.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    with running(log=tmp_path / "log", code=code) as manager:
        lines = [ServiceConnection(Where(manager.address), 5.0) for _ in range(80)]
        for line in lines:
            assert line.call("status", 5.0, job="") == []
            line.close()


def test_job_with_other_settings_or_without_any_is_refused(manager, job):
    with pytest.raises(Refused, match="there is no job") as unknown:
        manager.connect(job, "a")
    assert unknown.value.problem == "UNKNOWN_JOB"
    with manager.connect(job, "a", workers=2, total=64):
        with pytest.raises(
            Refused, match=r"must stay as it was created: total 64, got 65$"
        ) as other:
            manager.connect(job, "b", workers=2, total=65)
        assert other.value.problem == "INVALID"


def test_two_workers_with_one_name_are_refused_while_the_first_is_connected(manager, job):
    first = manager.connect(job, "a", workers=1, total=8)
    with pytest.raises(Refused, match="is already connected") as taken:
        manager.connect(job, "a")
    assert taken.value.problem == "NAME_TAKEN"
    assert first.boundary(said("a", 0)).sizes.tolist() == [8]
    first.close()
    until(lambda: not manager.status()[job]["workers"][0]["connected"], "the loss of a")
    second = manager.connect(job, "a", iteration=1)
    assert second.boundary(said("a", 1)).sizes.tolist() == [8]
    second.leave()


def test_worker_of_another_job_is_refused_on_a_line_that_is_taken(manager, job):
    line = ServiceConnection(Where(manager.address), 5.0)
    types = _types()
    settings = types.Settings(workers=1, total=8)

    def entry(name, worker):
        return types.Entry(job=name, worker=worker, iteration=0, lease=5.0, settings=settings)

    line.call("join", 5.0, entry=entry(job, "a"))
    for name, worker in ((job, "b"), (f"{job}-other", "a")):
        with pytest.raises(Refused, match=r"connection .*\bworker a\b") as wrong:
            line.call("join", 5.0, entry=entry(name, worker))
        assert wrong.value.problem == "OUT_OF_TURN"
    line.close()


def test_call_without_a_worker_is_refused(manager):
    line = ServiceConnection(Where(manager.address), 5.0)
    for name in ("renew", "leave"):
        with pytest.raises(Refused, match="join first") as refused:
            line.call(name, 5.0)
        assert refused.value.problem == "MEMBERSHIP"
    line.close()


def _types():
    from evenstep.manager.wire import types

    return types()


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"workers": 2}, "given together"),
        ({"workers": 8, "total": 4}, "add up to 8"),
        ({"workers": 2, "total": 4, "policy": "best"}, "policy must be one of"),
        ({"workers": 2, "total": 4, "lease": -1.0}, "lease must be from 0"),
        ({"workers": 2, "total": 4, "agree": True, "blocking": False}, "blocking=True"),
    ],
)
def test_mistakes_are_found_before_the_first_iteration(manager, job, options, rule):
    with pytest.raises(ValueError, match=rule):
        manager.connect(job, "a", **options)


def test_names_are_checked(manager):
    for bad in ("", "../x", "a b", "ü", "x" * 129):
        with pytest.raises(InvalidSetting, match="name of a job"):
            manager.connect(bad, "a")


def test_client_rejects_the_report_of_another_worker(manager, job):
    with (
        manager.connect(job, "a", workers=1, total=8) as client,
        pytest.raises(InvalidReport, match=r"worker a, got b$"),
    ):
        client.boundary(said("b", 0))


def test_no_manager_is_an_error_that_names_its_address():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    from evenstep import connect

    with pytest.raises(ManagerUnreachable, match=address):
        connect(address, "j", "a", workers=1, total=8, patience=0.1)


def test_first_plan_that_does_not_come_in_time_is_an_error(manager, job):
    with (
        manager.connect(job, "a", workers=2, total=8, timeout=0.2) as client,
        pytest.raises(Unplanned, match=r"no plan yet: .* 1 to join"),
    ):
        client.boundary(said("a", 0))


def test_many_jobs_do_not_know_each_other(manager, job):
    clients = {
        (j, w): manager.connect(
            f"{job}-{j}", w, workers=2, total=10 * (j + 1), policy="proportional", predictor="ema"
        )
        for j in range(10)
        for w in "ab"
    }
    stalled = clients.pop((0, "b"))
    for k in range(3):
        keys = [key for key in clients if key[0] != 0]
        plans = together(
            *(lambda c=clients[key], k=k: c.boundary(said(c.worker, k, 10.0)) for key in keys)
        )
        assert [plan.total for plan in plans] == [10 * (j + 1) for j, _ in keys]
    assert manager.status()[f"{job}-0"]["iteration"] == 0
    for client in (stalled, *clients.values()):
        client.close()


def test_slow_and_half_open_connections_delay_no_other(manager, job):
    host, port = manager.address.split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(50)]
    for i, line in enumerate(silent):
        # Half a length, a length and nothing, half a message.
        line.sendall([b"\0\0", struct.pack("!i", 100), struct.pack("!i", 100) + b"\x80\x01"][i % 3])
    clients = [manager.connect(job, w, workers=2, total=8) for w in "ab"]
    for k in range(20):
        boundary(clients, k)
    for client in clients:
        client.leave()
    for line in silent:
        line.close()


def test_non_blocking_worker_does_not_wait_for_the_others(manager, job):
    a, b = (
        manager.connect(
            job, w, workers=2, total=60, policy="proportional", predictor="ema", blocking=False
        )
        for w in "ab"
    )
    boundary([a, b], 0)
    # b does not report: a continues with the plan that it has.
    for k in range(1, 50):
        assert a.boundary(said("a", k, 10.0)).sizes.tolist() == [30, 30]
    b.boundary(said("b", 48, 20.0))
    b.boundary(said("b", 49, 20.0))
    until(lambda: a.newest >= 0 and b.newest >= 0 and a.newest == b.newest, "the same plans")
    a.close(), b.close()


def test_non_blocking_plans_arrive_in_the_background(manager, job):
    clients = [
        manager.connect(
            job, w, workers=2, total=60, policy="proportional", predictor="ema", blocking=False
        )
        for w in "ab"
    ]
    boundary(clients, 0)
    k = 0

    def goes_on():
        nonlocal k
        k += 1
        boundary(clients, k, 10.0, 20.0)
        return all(client.newest > 0 for client in clients)

    until(goes_on, "a plan for the speeds")
    marks = np.stack([client.show(said(w, k)) for w, client in zip("ab", clients, strict=True)])
    plans = [client.choose(marks) for client in clients]
    assert [plan.sizes.tolist() for plan in plans] == [[20, 40]] * 2
    for client in clients:
        client.leave()


def test_agreement_is_the_newest_plan_that_all_hold(manager, job):
    clients = [
        manager.connect(
            job, w, workers=2, total=60, policy="proportional", predictor="ema", agree=True
        )
        for w in "ab"
    ]
    boundary(clients, 0)
    plans = boundary(clients, 1, 10.0, 20.0)
    assert [plan.sizes.tolist() for plan in plans] == [[20, 40]] * 2
    # A worker that missed a plan keeps all at the last common one.
    del clients[1]._holding._held[1]
    plans = together(*(lambda c=client: c.agree(2) for client in clients))
    assert [plan.number for plan in plans] == [0, 0]
    for client in clients:
        client.leave()


def test_agreement_that_fails_for_one_fails_for_all_and_keeps_the_last_common_plan(manager, job):
    a, b = (
        manager.connect(job, w, workers=2, total=60, policy="proportional", predictor="ema")
        for w in "ab"
    )
    boundary([a, b], 0)
    boundary([a, b], 1, 10.0, 20.0)
    for client in (a, b):
        client.use(next(held for held in client.held if held.plan.number == 0))
    assert a.agree(1, timeout=0.1).number == 0
    assert b.agree(1, timeout=5.0).number == 0
    assert [plan.number for plan in together(lambda: a.agree(2), lambda: b.agree(2))] == [1, 1]
    a.close(), b.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_is_clean_and_says_what_was_kept(tmp_path, number):
    with running("--state", tmp_path / "state", log=tmp_path / "log") as manager:
        client = manager.connect("j", "a", workers=2, total=8, timeout=30.0)
        failed = []

        def wait():
            with pytest.raises(Unplanned):
                failed.append(client.boundary(said("a", 0)))

        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: manager.status()["j"]["workers"], "the worker")
        time.sleep(0.1)
        last = manager.stop(number)
        assert last == f"evenstep manager: stopped; kept 1 job in {tmp_path / 'state'}\n"
        waiting.join(5.0)
        assert not waiting.is_alive() and failed == []
        client.close()


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"total": 2**53}, "total of a job must be at most 1,000,000,000,000"),
        ({"workers": 10_001}, "workers of a job must be at most 10,000"),
        ({"predictor": "lstm:hidden=5000"}, "hidden units of a network must be at most 64"),
        ({"policy": "even" + "+dead_band" * 1_200}, "must have at most 16 wrappers, got 1200"),
        ({"policy": "even+limited:maximum=" + "9" * 400}, "maximum of limited must be an integer"),
        ({"policy": "even:" + "x" * 9_000}, "at most 8192 characters"),
    ],
)
def test_settings_beyond_the_limits_are_refused_and_counted(manager, job, settings, rule):
    before = refusals(manager)
    values = {"workers": 2, "total": 10**6, "policy": "proportional", **settings}
    with closing(ServiceConnection(Where(manager.address), 5.0)) as connection:
        struct = types().Settings(**values)
        with pytest.raises(Refused, match=re.escape(rule)) as error:
            connection.call("create", 5.0, job=job, settings=struct)
        assert error.value.problem == "INVALID"
        assert connection.call("status", 5.0, job="") is not None
    assert refusals(manager) == before + 1
    assert job not in manager.status()


def refusals(manager):
    _, text = manager.get("/metrics")
    found = re.search(r'evenstep_refused_requests_total\{problem="INVALID"\} (\d+)', text)
    return int(found[1]) if found else 0


def test_jobs_are_made_off_the_thread_that_serves_and_in_the_order_of_a_connections_calls():
    waiting = []
    jobs = Jobs(background=lambda *work: waiting.append(work))
    service = Service(jobs, lambda: 0.0)
    replies: list[bytes] = []
    peer = ClientConnection(replies.append, close=lambda: None)

    def call(name, **arguments):
        struct = getattr(types().BatchSizeManager, f"{name}_args")(**arguments)
        service.handle(peer, wire.encode_frame(name, 1, 1, wire.encode_body(struct))[4:])

    def work():
        prepare, then = waiting.pop(0)
        then(prepare())

    call("hello", version=VERSION, token="")
    settings = types().Settings(workers=1, total=8, predictor="ema")
    call("create", job="j", settings=settings)
    assert (len(replies), peer.busy, len(jobs)) == (1, True, 0)
    work()
    assert (len(replies), peer.busy, len(jobs)) == (2, False, 1)
    # The same job again needs no making.
    call("create", job="j", settings=settings)
    assert (len(replies), peer.busy, waiting) == (3, False, [])
    # A worker whose connection is lost meanwhile does not join.
    entry = types().Entry(job="k", worker="w", iteration=0, lease=5.0, settings=settings)
    call("join", entry=entry)
    service.lost(peer)
    work()
    assert jobs.find("k").workers == ()


def test_settings_that_are_refused_leave_nothing_behind():
    kept: list[weakref.ref[Any]] = []

    class Large:
        pass

    def work():
        large = Large()
        kept.append(weakref.ref(large))
        raise InvalidSetting("too much")

    results: list[Exception] = []
    gc.disable()
    try:
        at_once(work, results.append)
        try:
            raise results.pop()
        except InvalidSetting as error:
            assert str(error) == "too much"
        assert kept[0]() is None
    finally:
        gc.enable()
