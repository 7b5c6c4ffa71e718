"""What decides under a training, without one: the extra column, and the background processes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenstep.errors import EvenstepError, InvalidSetting
from evenstep.partitions import MigrationRule
from evenstep.partitions.agents.settings import BANDWIDTH, MigrationSettings
from evenstep.partitions.handover.task import MigrationOutcome
from evenstep.pytorch.background_processes import AgentProcess, MigrationProcess, Serving
from evenstep.pytorch.local_carrier import _check_reachable, start_agents
from evenstep.pytorch.local_migration import LocalMigration, restored, saved
from evenstep.pytorch.local_source import LocalSource
from evenstep.training.collective import Alone
from evenstep.training.report_rows import ExtraColumn
from tests.pytorch_partitions.partitions import make

SIZES, CAPS = np.array([40, 40]), np.array([80, 80])


class Fake:
    """An agent and a carrier that do nothing."""

    def __init__(self) -> None:
        self.outcome: MigrationOutcome | None = None
        self.begun: list[Any] = []
        self.calls: list[str] = []

    def begin(self, sizes: Any, number: int) -> None:
        self.begun.append((sizes.tolist(), number))

    def revive(self) -> None:
        self.calls.append("revive")

    def close(self) -> None:
        self.calls.append("close")


def two_workers(fake):
    """Return what two workers know, of which the first has the carrier."""
    rule: Any = MigrationRule(threshold=1.0)
    return [LocalMigration(rule, SIZES, CAPS, carrier, fake) for carrier in (fake, None)]


def exchange(workers):
    """Let each say its number, and all hear them."""
    numbers = np.array([worker.say() for worker in workers])
    for worker in workers:
        worker.hear(numbers)


def test_all_workers_begin_and_end_together_by_what_worker_0_says():
    fake = Fake()
    workers = two_workers(fake)
    for _ in range(20):
        exchange(workers)
        for worker in workers:
            worker.observe(np.array([6, 2]))
        texts = [worker.begin_if_due() for worker in workers]
        assert texts[0] == texts[1]
    # Once, though the rule would have asked many times.
    assert fake.begun == [([60, 20], 1)]
    assert [worker.has_ended for worker in workers] == [None, None]
    fake.outcome = MigrationOutcome(20, (), is_over=True)
    assert [worker.has_ended for worker in workers] == [None, None]
    exchange(workers)
    assert [worker.has_ended for worker in workers] == [True, True]
    texts = [worker.end(np.array([60, 20]), CAPS, "") for worker in workers]
    assert "20 samples moved, partitions [60, 20]" in texts[0]
    assert [worker.has_ended for worker in workers] == [None, None]
    assert workers[0].state.traversals.counts.tolist() == [0, 0]


def test_what_is_left_open_is_no_reason_to_change_over(caplog):
    fake = Fake()
    workers = two_workers(fake)
    for worker in workers:
        worker.observe(np.array([60, 2]))
        worker.begin_if_due()
    fake.outcome = MigrationOutcome(3, ("w0 to w1: open",), is_over=False)
    exchange(workers)
    assert [worker.has_ended for worker in workers] == [False, False]
    for worker in workers:
        worker.end(SIZES, None, "as before")
    assert fake.calls == ["revive"] * 2
    [record] = caplog.records
    assert "0 samples moved, partitions [40, 40]; not all went well: w0 to w1: open; as before" in (
        record.getMessage()
    )


def test_quotas_are_kept_to():
    fake = Fake()
    rule = MigrationRule(threshold=1.0)
    agent: Any = fake
    migration = LocalMigration(rule, SIZES, np.array([50, 80]), fake, agent)
    migration.observe(np.array([90, 10]))
    migration.begin_if_due()
    assert fake.begun == [([50, 30], 1)]


def test_a_checkpoint_has_what_the_rule_knows():
    rule = MigrationRule()
    state = rule.init(SIZES)
    for sizes in ([6, 2], [5, 3], [7, 1]):
        state = rule.observe(state, sizes)
    again = restored(saved(state), SIZES)
    for name in ("recent", "last", "jitter"):
        assert getattr(again, name).tolist() == getattr(state, name).tolist()
    assert again.traversals.consumed.tolist() == [18, 6]


def test_a_migration_that_cannot_even_begin_has_failed(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    migration = MigrationProcess(MigrationSettings(["127.0.0.1:1"]))
    assert migration.outcome is not None
    assert not migration.outcome.is_over
    assert "nothing" in migration.outcome.problems[0]
    migration.close()


@pytest.mark.parametrize(
    "serving, bandwidth, insecure",
    [
        (Serving(), BANDWIDTH, False),
        (Serving(bandwidth=None, insecure=True), None, True),
        (Serving(bandwidth=50), 50, False),
    ],
)
def test_an_agent_has_the_bandwidth_that_it_was_given(serving, bandwidth, insecure):
    given = serving.agent(Path("w0"))
    assert (given.folder, given.bandwidth, given.insecure) == ("w0", bandwidth, insecure)


PATHS = {name: Path(name) for name in ("token_file", "tls_cert", "tls_key", "tls_ca")}


@pytest.mark.parametrize("authority", [{}, {"tls_ca": None}])
def test_paths_of_files_become_plain_text(authority):
    serving = Serving(**PATHS | authority)
    agent = serving.agent(Path("w0"))
    migration = serving.migration(["127.0.0.1:1"], [1], seed=0)
    trusted = "tls_cert" if authority else "tls_ca"
    for name in ("token_file", "tls_cert", "tls_key"):
        assert getattr(agent, name) == name
    assert agent.tls_ca == (None if authority else "tls_ca")
    assert (migration.token_file, migration.tls_ca) == ("token_file", trusted)


def outcome_of_a_program(monkeypatch, folder, lines, settings):
    """Return the outcome of a migration whose process writes these lines."""
    program = folder / "program"
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    migration = MigrationProcess(settings)
    try:
        while (outcome := migration.outcome) is None:
            time.sleep(0.01)
    finally:
        migration.close()
    return outcome.moved, list(outcome.problems), outcome.is_over


OUTCOME = '{"outcome": {"moved": 3, "problems": [], "is_over": true}}'


@pytest.mark.timeout(60)
@pytest.mark.parametrize("stray", ["of a library", "[1, 2]", "7", "null", "", '{"a": 1}', "{"])
def test_stray_lines_of_a_migration_are_skipped(monkeypatch, tmp_path, stray):
    settings = MigrationSettings(["127.0.0.1:1"])
    found = outcome_of_a_program(monkeypatch, tmp_path, [stray, OUTCOME, stray], settings)
    assert found == (3, [], True)


@pytest.mark.timeout(60)
def test_a_seed_may_be_an_integer_of_numpy(monkeypatch, tmp_path):
    seed: Any = np.int64(5)
    settings = Serving().migration(["127.0.0.1:1"], [1], seed)
    assert outcome_of_a_program(monkeypatch, tmp_path, [OUTCOME], settings) == (3, [], True)


class Counting(Alone):
    """A worker that counts how often it exchanged values with the others."""

    calls = 0

    def everybody(self, row: Any) -> Any:
        self.calls += 1
        return super().everybody(row)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "settings, seed, named",
    [
        ({"bandwidth": 0}, {}, "bandwidth"),
        ({"bandwidth": -5.0}, {}, "bandwidth"),
        ({"patience": 0.0}, {}, "patience"),
        ({"token_file": 5}, {}, "PathLike"),
        ({"listen": {1}}, {}, "set"),
        ({}, {"seed": -3}, "seed"),
    ],
)
def test_wrong_settings_are_an_error_that_all_workers_hear_of(tmp_path, settings, seed, named):
    collective, folder = Counting(), Path(make(tmp_path, 3)[0])
    with pytest.raises(EvenstepError, match=f"worker 0 .*{named}"):
        start_agents(folder, Serving(**settings), collective, **seed)
    assert collective.calls > 0


def test_others_find_an_agent_by_the_name_that_it_was_given(tmp_path):
    """Certificates are for names more often than for numbers."""
    agent = AgentProcess(Path(make(tmp_path, 3)[0]), Serving(listen="localhost:0"))
    try:
        port = agent.bound.rpartition(":")[2]
        assert agent.address == f"localhost:{port}"
        assert int(port) > 0
    finally:
        agent.close()


@pytest.mark.parametrize(
    "address, bound, got",
    [
        ("127.0.0.1:80", "127.0.0.1:80", "got 127.0.0.1:80 for worker 1"),
        ("0.0.0.0:80", "0.0.0.0:80", "got 0.0.0.0:80 for worker 1"),
        ("[::]:80", "[::]:80", r"got \[::\]:80 for worker 1"),
        # As the host's own name is in the hosts file of Debian.
        ("node1:80", "127.0.1.1:80", "got node1:80, which is 127.0.1.1:80 there, for worker 1"),
    ],
)
def test_addresses_that_other_machines_do_not_reach_are_refused(address, bound, got):
    there = ("node0:80", "10.0.0.1:80")
    _check_reachable(["one", "one"], [there[0], address], [there[1], bound])
    with pytest.raises(InvalidSetting, match=f"must listen on an address that .*{got}"):
        _check_reachable(["one", "two"], [there[0], address], [there[1], bound])
    _check_reachable(["one", "two"], [there[0]] * 2, [there[1]] * 2)


def test_a_folder_is_found_again_from_wherever_a_script_goes(monkeypatch, tmp_path):
    make(tmp_path, 3, 5)
    monkeypatch.chdir(tmp_path)
    source = LocalSource("w1")
    monkeypatch.chdir("/")
    assert source.read().size == 5


def test_an_extra_column_is_for_one():
    rows = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, -6.0]], dtype=np.float32)
    column, (user, _) = ExtraColumn(), two_workers(Fake())
    assert column.slot().tolist() == [0]
    assert column.cut(rows).tolist() == [[1, 2], [4, 5]]
    column.take(user)
    with pytest.raises(InvalidSetting, match="a second loader"):
        column.take(user)
