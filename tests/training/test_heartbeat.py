"""Signs of life: what workers conclude from them, and when a watchdog ends a job."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import pytest

from evenstep.errors import InvalidSetting, WorkerLost
from evenstep.training import heartbeat as module
from evenstep.training.collective import Alone
from evenstep.training.heartbeat import (
    AWAY,
    EXCHANGE,
    SILENCE,
    WORK,
    Heartbeat,
    Progress,
    SharedStore,
    Sign,
    Signs,
    UsualIteration,
)
from evenstep.training.iteration import Pass
from evenstep.training.loop_setup import make_loop

WHO = ["worker 0 (a)", "worker 1 (b)", "worker 2 (c)"]


class Shelf:
    """A store of this process; it can be lost."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.is_lost = False

    def set(self, key: str, value: str) -> None:
        self._require()
        self.texts[key] = value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._require()
        return [self.texts[key].encode() for key in keys]

    def _require(self) -> None:
        if self.is_lost:
            raise RuntimeError("connection reset")


class Job:
    """One real heartbeat at made-up times, among workers whose signs the test writes."""

    def __init__(self, watchdog: float | None = None, worker: int = 0) -> None:
        self.shelf, self.notes = Shelf(), list[str]()
        self.progress = Progress(WORK, 0)
        self.keys = [f"key/{i}" for i in range(len(WHO))]
        self.heartbeat = Heartbeat(
            SharedStore(self.shelf, "the process of rank 0"), self.keys, Signs(WHO, worker),
            worker, lambda: self.progress, lambda k, text: self.notes.append(text), watchdog,
        )  # fmt: skip
        self.heartbeat.announce()
        self.start = self.heartbeat._since
        self.second = 0

    def write(self, worker: int, *sign: Any) -> None:
        self.shelf.texts[self.keys[worker]] = json.dumps([self.second, *sign, ""])

    def beat(self, *others: tuple[str, int] | None) -> None:
        """Let a second pass, after a sign of life of each other worker that has one."""
        self.second += 1
        for worker, sign in enumerate(others, start=1):
            if sign is not None:
                self.write(worker, *sign)
        self.heartbeat._beat(self.start + self.second)

    def train(self, iterations: int) -> None:
        for k in range(iterations):
            self.progress = Progress(WORK, k)
            self.beat((WORK, k), (WORK, k))


@pytest.fixture(autouse=True)
def exits(monkeypatch):
    """End a worker by an exception, and hung ones early."""
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(module, "LEAST", 8.0)


def ends() -> Any:
    """Expect that this worker ends with a failing exit code."""
    return pytest.raises(SystemExit, match=r"^1$")


def test_workers_that_failed_themselves_are_not_the_reason():
    signs = Signs(WHO, 0)
    for now in (0.0, SILENCE):
        signs.take([Sign(1, EXCHANGE, 9), Sign(1, "lost", 9), Sign(1, EXCHANGE, 8)], now)
    (found,) = signs.findings()
    assert found.startswith("worker 2 (c) was last heard of 5 s ago, in iteration 7")
    assert signs.is_settled(0.0)


def test_a_worker_that_is_heard_of_is_settled_and_may_be_behind_between_iterations():
    signs = Signs(WHO, 0)
    signs.take([Sign(1, EXCHANGE, 9), Sign(1, AWAY, 8), Sign(1, EXCHANGE, 9)], 0.0)
    assert not signs.is_settled(0.0)
    signs.take([Sign(2, EXCHANGE, 9), Sign(2, AWAY, 8), Sign(2, EXCHANGE, 9)], 1.0)
    assert signs.is_settled(0.0)
    assert signs.late(AWAY) == [1]
    expected = "worker 1 (b) is running, but still between iterations before iteration 8"
    assert signs.findings() == [expected]


def test_an_ended_worker_says_why():
    signs = Signs(WHO[:2], 0)
    signs.take([Sign(1, EXCHANGE, 5), Sign(1, "ended", 4, "KeyError: 'x'")], 0.0)
    assert signs.findings() == ["worker 1 (b) has ended in iteration 4, by KeyError: 'x'"]


def test_usual_iteration_is_not_changed_by_a_pause():
    usual = UsualIteration()
    for k, now in enumerate([0.0, 1.0, 2.0, 3.0, 103.0, 104.0]):
        usual.observe(k, now)
    assert usual.seconds == 1.0


def test_watchdog_ends_a_job_that_stands_still_in_an_iteration(capsys):
    job = Job(watchdog=10)
    job.train(8)
    for _ in range(10):
        job.beat((EXCHANGE, 8), (EXCHANGE, 8))
    job.progress = Progress(EXCHANGE, 8)
    for _ in range(11):
        job.beat((EXCHANGE, 8), (WORK, 7))
    with ends():
        job.beat(("ended", 8), ("ended", 7))
    assert "worker 0 (a) was in the exchange in iteration 7 for 11 s" in job.notes[0]
    assert "[worker 0] worker 0 (a), in the exchange in iteration 7:" in capsys.readouterr().err
    assert job.shelf.texts["key/0/stop"] == job.notes[0]


def test_watchdog_obeys_that_of_another_worker():
    job = Job(watchdog=1000)
    job.train(8)
    job.shelf.texts["key/0/stop"] = "worker 1 hangs"
    job.beat(("ended", 8), ("ended", 8))
    with ends():
        job.beat(("ended", 8), ("ended", 8))
    assert job.notes == ["worker 1 hangs"]


@pytest.mark.parametrize("evaluates_itself", [False, True])
def test_watchdog_excuses_work_between_iterations(evaluates_itself):
    job = Job(watchdog=2)
    job.train(8)
    job.progress = Progress(AWAY if evaluates_itself else EXCHANGE, 8)
    for _ in range(30):
        job.beat((AWAY, 7), (EXCHANGE, 8))
    job.progress = Progress(EXCHANGE, 8)
    for _ in range(8):
        job.beat((WORK, 7), (EXCHANGE, 8))
    with ends():
        for _ in range(2):
            job.beat(("ended", 7), ("ended", 8))


def test_watchdog_does_not_excuse_a_worker_that_died_between_iterations():
    job = Job(watchdog=2)
    job.train(8)
    job.progress = Progress(EXCHANGE, 8)
    job.beat((AWAY, 7), (EXCHANGE, 8))
    with ends():
        for _ in range(20):
            job.beat(None, ("ended", 8))
    assert "worker 1 (b) was last heard of" in job.notes[0]


def test_a_missing_worker_is_said_once_and_so_is_its_return(capsys):
    job = Job()
    job.train(3)
    job.progress = Progress(EXCHANGE, 3)
    for _ in range(12):
        job.beat((EXCHANGE, 3), None)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("evenstep: worker 0 (a) waits in iteration 2: worker 2 (c) was last")
    job.train(4)
    assert capsys.readouterr().err == "evenstep: worker 0 (a) continues in iteration 0\n"


def test_an_error_names_the_worker_whose_signs_have_stopped(monkeypatch):
    monkeypatch.setattr(module, "SILENCE", 1.0)
    job = Job()
    job.write(1, EXCHANGE, 7)
    job.write(2, WORK, 6)
    job.progress = Progress(EXCHANGE, 7)
    job.heartbeat.start()
    job.write(1, "lost", 7)
    error = job.heartbeat.explain(RuntimeError("connection closed\nby peer"))
    job.heartbeat.close()
    assert isinstance(error, WorkerLost)
    assert str(error).startswith(
        "all workers must complete the exchange of iteration 6, but it failed: worker 2 (c) was "
        "last heard of 1 s ago, in iteration 6: it died, is stopped or is cut off. To continue"
    )
    assert str(error).endswith("The process group says: connection closed")
    assert len(job.notes) == 1
    assert json.loads(job.shelf.texts["key/0"])[1] == "lost"


def test_an_error_after_the_loss_of_the_store_names_its_keeper():
    job = Job(worker=1)
    job.heartbeat.start()
    job.shelf.is_lost = True
    error = job.heartbeat.explain(RuntimeError("connection closed"))
    job.heartbeat.close()
    assert "the process of rank 0 died or is cut off: its store cannot be reached" in str(error)


def test_an_error_stays_as_it_is_if_all_workers_are_there(capsys):
    job = Job()
    job.progress = Progress(EXCHANGE, 7)
    job.write(1, "failing", 7)
    job.write(2, "lost", 7)
    job.heartbeat.start()
    threading.Timer(1.0, lambda: job.write(1, "lost", 7)).start()
    assert job.heartbeat.explain(RuntimeError("wrong shapes")) is None
    job.heartbeat.close()
    expected = "evenstep: the exchange of iteration 6 failed: all workers are heard of, and none"
    assert capsys.readouterr().err.startswith(expected)


def test_the_last_sign_says_which_error_ended_the_program(monkeypatch):
    job = Job()
    monkeypatch.setattr(sys, "last_value", ValueError("bad"), raising=False)
    job.heartbeat.start()
    job.heartbeat.close()
    assert json.loads(job.shelf.texts["key/0"])[1:] == ["ended", 0, "ValueError: bad"]


def test_a_loop_says_where_its_worker_is():
    loop = make_loop(Alone(), 8, framework="test", summary=False, fetches_ahead=True)
    seen = [loop.progress().phase]

    def look() -> None:
        seen.append(loop.progress().phase)

    loop.begin()
    look()
    loop.has_batch(loop.plan.sizes, (0, 0))
    look()
    with loop.away():
        look()
    look()
    loop.finish()
    look()
    loop.take(loop.slots())
    look()
    # The end of an epoch.
    of = Pass()
    loop.begin(of)
    look()
    loop.leave(of)
    look()
    loop.close()
    assert seen == [AWAY, WORK, WORK, AWAY, WORK, EXCHANGE, AWAY, WORK, AWAY]


@pytest.mark.parametrize(
    ("watchdog", "message"),
    [(1, "> 1, or None, got 1"), ("20", "got '20'"), (5, "share a TCP store")],
)
def test_wrong_watchdogs_are_refused(watchdog, message):
    with pytest.raises(InvalidSetting, match=message):
        make_loop(Alone(), 8, framework="test", summary=False, watchdog=watchdog)
