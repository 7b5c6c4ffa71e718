"""A minute of training in which processes are killed all the time; `scripts/test --soak` runs it.

Where a data plane decides which plan is used, no two workers of an iteration ever differ. Where the
manager does (`agree`), they may from the moment it is killed until the next agreement.
"""

import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.manager.managers import Manager, running, until
from tests.manager.soak.exchange import DataPlane
from tests.manager.soak.jobs import JOBS, TRAINERS
from tests.manager.soak.record import Applied, Record, newest_iteration, read
from tests.manager.soak.trainer import STOP

Kill = tuple[float, float, float, list[str]]
"""The moments before and after it, that at which the victims are started again, and the victims."""

ROOT = Path(__file__).parents[3]
SECONDS = 50.0
SEED = 11
AT_ONCE = [["trainer"]] * 4 + [["manager"]] * 3 + [["trainer", "manager"]] * 2 + [["trainer"] * 2]
"""What is killed together, each as likely as it is often in here."""


class Trainers:
    """The training-like processes, by name."""

    def __init__(self, manager: str, port: int, folder: Path) -> None:
        self._log = folder / "log"
        self._arguments = [manager, str(port), str(folder)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for i in range(TRAINERS):
            self.start(f"t{i}")

    def start(self, name: str) -> None:
        words = [sys.executable, "-m", "tests.manager.soak.trainer", name, *self._arguments]
        with self._log.open("ab") as log:
            self.processes[name] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stderr=log, cwd=ROOT
            )

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_one_plan_per_iteration_and_progress_whatever_is_killed(tmp_path, capsys):
    state, folder = tmp_path / "state", tmp_path / "applied"
    folder.mkdir()
    data_plane = DataPlane([loop.job for loop in JOBS if loop.data_plane])
    with running("--state", state, log=tmp_path / "log") as manager:
        trainers = Trainers(manager.address, data_plane.port, folder)
        try:
            _wait_for_progress(folder, [-1] * len(JOBS))
            kills = _disturb(manager, trainers, folder)
            for exchange in data_plane.jobs.values():
                exchange.stop()
            (folder / STOP).touch()
            for process in trainers.processes.values():
                assert process.wait(30.0) == 0
        finally:
            trainers.close()
            data_plane.close()
        assert manager.stop().startswith("evenstep manager: stopped; kept 3 jobs in")
    errors = folder / "errors"
    assert not errors.exists(), errors.read_text()
    records = [read(loop, folder) for loop in JOBS]
    with capsys.disabled():
        print(_summary(records, kills))
    for record in records:
        assert record.wrong_totals() == []
        assert _went_on(record, [after for _, after, *_ in kills])
        assert record.disagreements() == _allowed(record, kills)
    _nothing_is_left(manager, state)


def _disturb(manager, trainers: Trainers, folder: Path) -> list[Kill]:
    """Kill and start again until the time is over, and return what was killed when."""
    rng = random.Random(SEED)
    kills = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(rng.uniform(0.0, 2.0))
        victims = rng.choice(AT_ONCE)
        names = rng.sample(sorted(trainers.processes), victims.count("trainer"))
        began = time.monotonic()
        for name in names:
            trainers.kill(name)
        if "manager" in victims:
            manager.kill()
        after = time.monotonic()
        before = [newest_iteration(loop, folder) for loop in JOBS]
        if "manager" in victims:
            time.sleep(rng.uniform(0.0, 0.5))
        kills.append((began, after, time.monotonic(), victims))
        if "manager" in victims:
            manager.start()
        for name in names:
            trainers.start(name)
        _wait_for_progress(folder, before)
    return kills


def _wait_for_progress(folder: Path, before: list[int]) -> None:
    """Wait until every job has come further than it was."""

    def went_on() -> bool:
        pairs = zip(JOBS, before, strict=True)
        return all(newest_iteration(loop, folder) > iteration for loop, iteration in pairs)

    until(went_on, f"progress of all jobs after iterations {before}")


def _went_on(record: Record, kills: list[float]) -> bool:
    """Whether an iteration that had not been before was begun between a kill and the next."""
    ends = [*kills[1:], float("inf")]
    return all(
        record.furthest(kill, end) > record.furthest(0.0, kill)
        for kill, end in zip(kills, ends, strict=True)
    )


def _allowed(record: Record, kills: list[Kill]) -> list[list[Applied]]:
    """Return the disagreements that cannot be avoided: none where there is a data plane."""
    if record.loop.data_plane:
        return []
    return record.disagreements_since(
        [(before, start) for before, _, start, victims in kills if "manager" in victims]
    )


def _summary(records: list[Record], kills: list[Kill]) -> str:
    victims = [victim for *_, together in kills for victim in together]
    head = (
        f"\nsoak: {TRAINERS} trainers of 4 workers each, {victims.count('trainer')} kills of them "
        f"and {victims.count('manager')} of the manager, at {len(kills)} moments"
    )
    return "\n".join([head, *(f"  {record.summary()}" for record in records)])


def _nothing_is_left(manager: Manager, state: Path) -> None:
    assert psutil.Process().children(recursive=True) == []
    host, port = manager.address.split(":")
    with socket.socket() as line:
        assert line.connect_ex((host, int(port))) != 0
    names = sorted(path.name for path in state.iterdir())
    assert names == sorted([".lock", *(f"{loop.job}.job.npz" for loop in JOBS)])
