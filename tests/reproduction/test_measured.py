"""Experiments measured on this machine: there are figures, and they are plausible."""

import re
import sys
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from threading import BrokenBarrierError

import numpy as np
import pytest

from evenstep.core import Trainable
from evenstep.errors import EvenstepError
from evenstep.manager.client import ManagerClient
from evenstep.predictors import make_predictor
from reproduction import client_workers
from reproduction.client_workers import _results, client_rounds
from reproduction.experiment import Settings, Skipped
from reproduction.experiments import overhead, slowdown
from reproduction.manager_workers import Rounds, manager, playing
from reproduction.memory_group import memory_group
from tests.reproduction.tables import shapes

pytestmark = [pytest.mark.reproduction, pytest.mark.timeout(900)]


def test_cpu_curves_are_measured_and_fitted(result):
    curve = result("cpu-curve")
    fits, parts = (table.rows for table in curve.tables)
    assert [row["model"] for row in fits] == ["ResNet-32", "CifarNet"]
    assert all(row["ms of CPU per sample"] > 0 for row in fits)
    assert [(row["model"], row["exchange"]) for row in parts] == [
        (model, exchange)
        for model in ("ResNet-32", "CifarNet")
        for exchange in (
            "one worker, local socket (measured)",
            "32 workers, 10 Gbit/s (computed)",
        )
    ]
    assert all(0 < row["part that is computation"] < 1 for row in parts)
    assert {claim.name for claim in curve.claims} == {
        "linear", "mostly_computation", "mostly_computation_of_32"
    }  # fmt: skip
    share = "part that is computation"
    assert shapes(curve) == [
        (
            "Gradients on one core",
            "measured",
            [
                "model",
                "ms of CPU at 0 (fit)",
                "ms of CPU per sample",
                "r2",
                "r2, paper",
                "r2, wall clock",
            ],
        ),
        (
            "The part of t that is computation, 24 samples",
            "measured",
            ["model", "exchange", "gradient, ms", "exchange, ms", share, f"{share}, paper"],
        ),
    ]


def test_overhead_is_measured_through_a_manager(result):
    times, shares = result("overhead").tables
    assert [(row["workers"], row["predictor"], row["played by"]) for row in times.rows] == [
        (32, "narx:start=30", "messages"),
        (64, "narx:start=30", "messages"),
        (96, "narx:start=30", "messages"),
        (32, "best_of", "messages"),
        (64, "best_of", "messages"),
        (96, "best_of", "messages"),
        (32, "narx:start=30", "evenstep.connect"),
    ]
    assert re.search(r"\bfirst 30 iterations .*\bnot counted\b", times.note)
    # What NARX does is hardly seen in so few rounds.
    assert [claim.name for claim in result("overhead").claims] == ["our_small", "grows_slowly"]
    for row in shares.rows:
        for what in ("measuring", "updating"):
            assert 0 < row[f"{what}: 5th"] <= row[f"{what}: 95th"]
        assert row["both: mean"] > row["updating: mean"]
    for row in times.rows:
        # The system counts another process's time in hundredths of a second.
        assert row["manager's CPU, ms"] >= 0
        assert row["workers' CPU, ms"] > 0


def test_narx_has_enough_to_learn_from_when_rounds_begin_to_count():
    for scale in (overhead.QUICK, overhead.FULL):
        narx = make_predictor(scale.narx, 2)
        assert isinstance(narx, Trainable)
        for _ in range(scale.learns_from):
            assert narx.training() is None
            narx.observe(np.ones(2), np.ones(2), np.ones(2))
        assert narx.training() is not None
    assert overhead.FULL.narx == "narx"


def test_rounds_that_do_not_count_come_first(monkeypatch):
    numbers = count(1)
    monkeypatch.setattr(Rounds, "round", lambda self: [next(numbers)])
    spent = overhead.time_rounds(overhead.Case(1, "ema"), overhead.Scale(3, 2))
    assert spent.seconds.tolist() == [4, 5]


def test_tables_of_overhead_say_what_is_divided_by(result):
    who, statistics = ["workers", "predictor", "played by"], ("mean", "5th", "95th")
    assert shapes(result("overhead")) == [
        (
            "Blocking rounds through the manager, 20 iterations",
            "measured",
            [*who, "measuring, ms", "updating, ms", "manager's CPU, ms", "workers' CPU, ms"],
        ),
        (
            "The same as shares of an assumed iteration of 1.42 s",
            "measured",
            [
                *who,
                *(f"measuring: {name}" for name in statistics),
                *(f"updating: {name}" for name in statistics),
                "both: mean",
                "both: mean, paper",
            ],
        ),
    ]
    assert re.search(r"\bassumed: 128 samples\b", result("overhead").tables[1].note)


def test_clients_that_are_refused_end_the_rounds_with_the_reason():
    # Workers of these names are there, and have reported already.
    with (
        manager() as (_, address),
        playing(address, "taken", 2, "ema"),
        pytest.raises(EvenstepError, match="w0"),
    ):
        client_rounds(address, "taken", 2, "ema", 0, 1, lambda: np.zeros(1))


def test_clients_are_read_after_the_rounds_that_do_not_count_and_after_the_last():
    bound, planned = ManagerClient.boundary, []

    def boundary(client, report):
        bound(client, report)
        planned.append(client.worker)

    with manager() as (_, address), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ManagerClient, "boundary", boundary)
        seconds, went_on = client_rounds(
            address, "read", 2, "ema", 3, 4, lambda: np.array([len(planned)])
        )
    assert (seconds > 0).tolist() == [True] * 4
    assert went_on.tolist() == [2 * 4]


def test_worker_that_fails_is_told_not_those_that_waited_for_it():
    broken: Future[np.ndarray] = Future()
    cause: Future[np.ndarray] = Future()
    broken.set_exception(BrokenBarrierError())
    cause.set_exception(EvenstepError("the manager is away"))
    with pytest.raises(EvenstepError, match="the manager is away"):
        _results("one", [broken, cause])
    with pytest.raises(EvenstepError, match=r"^job one: all 1 workers "):
        _results("one", [broken])


@pytest.mark.timeout(60)
def test_clients_that_are_interrupted_end_with_the_round(monkeypatch):
    def interrupt(taking_part):
        raise KeyboardInterrupt

    monkeypatch.setattr(client_workers, "wait", interrupt)
    with manager() as (_, address), pytest.raises(KeyboardInterrupt):
        client_rounds(address, "interrupted", 2, "ema", 0, 10**6, lambda: np.zeros(1))


def test_played_workers_that_are_interrupted_hang_up():
    with manager() as (_, address):
        with (
            pytest.raises(KeyboardInterrupt),
            playing(address, "interrupted", 2, "ema") as rounds,
        ):
            (workers,) = rounds._jobs
            raise KeyboardInterrupt
        assert [line._socket.fileno() for line in workers.lines] == [-1, -1]


def test_every_case_of_overhead_has_a_manager_of_its_own(monkeypatch):
    processes = []

    def cpu_seconds(process):
        processes.append(process)
        return np.zeros(2)

    monkeypatch.setattr(overhead, "_cpu_seconds", cpu_seconds)
    for clients in (overhead.MESSAGES, overhead.MESSAGES, overhead.CLIENTS):
        overhead.time_rounds(overhead.Case(2, "ema", clients), overhead.Scale(2, 1))
    before, after = processes[::2], processes[1::2]
    assert before == after
    assert len(set(before)) == 3


def test_overhead_is_skipped_where_no_manager_can_be_run(monkeypatch):
    monkeypatch.setattr(sys, "executable", "echo")
    with pytest.raises(Skipped, match=r"must listen, got '-m evenstep manager\b"):
        overhead.run(Settings(quick=True), lambda share, text: None)


def test_slowdown_is_measured_or_the_reason_is_said(result):
    try:
        found = result("slowdown")
    except Skipped as reason:
        assert "cannot be" in str(reason)
        return
    both = [
        (
            f"Speed with less {what}",
            "measured",
            [part, "samples per second", "speed / unrestricted"],
        )
        for what, part in (
            ("CPU", "share of a CPU (quota)"),
            ("memory", "memory for the file / its size"),
        )
    ]
    assert [shape for shape in both if shape in shapes(found)] == shapes(found)
    missing = 2 - len(found.tables)
    assert sum(text.startswith("Skipped: ") for text in found.differences) == missing


def times_limited(group, what):
    """Return how often the kernel held a group back, of cgroup v1 or v2."""
    failures = group / "memory.failcnt"
    if what == "memory" and failures.is_file():
        return int(failures.read_text())
    file, name = {"CPU": ("cpu.stat", "nr_throttled"), "memory": ("memory.events", "max")}[what]
    counts = dict(line.split() for line in (group / file).read_text().splitlines())
    return int(counts[name])


@pytest.mark.parametrize("what", ["CPU", "memory"])
def test_worker_is_held_back_by_a_limit(what, monkeypatch):
    # How much slower it is depends on the disk, and on what others leave to it.
    speed, held_back = slowdown._speed, []

    def watched(group, *arguments):
        found = speed(group, *arguments)
        held_back.append(times_limited(Path(group), what))
        return found

    monkeypatch.setattr(slowdown, "_speed", watched)
    try:
        with slowdown._rows(64) as path:
            if what == "CPU":
                speeds = slowdown.under_quotas(path, (0.1,), 1.0)
            else:
                speeds = slowdown.under_limits(path, (0.25,), 64, 1.0)
    except EvenstepError as reason:
        pytest.skip(str(reason))
    assert [value > 0 for value in speeds.values()] == [True]
    assert [times > 0 for times in held_back] == [True]


def test_slowdown_is_skipped_where_nothing_may_be_limited(monkeypatch):
    def refuse(*arguments):
        raise EvenstepError("it is not allowed")

    monkeypatch.setattr(slowdown, "under_quotas", refuse)
    monkeypatch.setattr(slowdown, "under_limits", refuse)
    with pytest.raises(Skipped, match="it is not allowed; it is not allowed"):
        slowdown.run(Settings(quick=True), lambda share, text: None)


def test_memory_is_not_limited_where_there_is_no_controller(tmp_path):
    with (
        pytest.raises(EvenstepError, match=r"^memory cannot be limited\b"),
        memory_group(2**20, tmp_path),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
