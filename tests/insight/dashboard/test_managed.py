"""Jobs of a manager: its events as if they were a run log, and a real manager behind them."""

import json
import time
from dataclasses import replace

import pytest

from evenstep.insight.dashboard import view
from evenstep.insight.dashboard.managed import Managed
from evenstep.insight.dashboard.source import key_of
from evenstep.manager.access import parse_address
from evenstep.runlog.follower import ManagerFollower
from evenstep.runlog.manager_stream import ManagerStream
from tests.manager.managers import boundary, running, until
from tests.runlog.test_manager_events import iteration, plan


class Followed:
    """A source whose manager is a list of events."""

    def __init__(self, *events):
        self.stream = ManagerStream(("127.0.0.1", 1))
        self.stream.problem = None
        self.source = Managed(ManagerFollower(self.stream), "manager")
        self.hear(*events)

    def hear(self, *events):
        for event in events:
            self.stream.put(event)
        while self.source.poll():
            pass

    @property
    def reading(self):
        reading = self.source.read(key_of("j"))
        assert reading is not None
        return reading

    @property
    def job(self):
        return self.reading.job

    @property
    def run(self):
        return self.reading.run


SETTINGS = {"total": 48, "policy": "proportional", "predictor": "ema"}
CREATED = {"event": "created", "time": 0.0, "job": "j", "settings": SETTINGS}


def test_events_become_a_job():
    managed = Followed(
        CREATED,
        plan(0, 0, ["a", "b"], [24, 24]),
        iteration(0, ["a", "b"], [24, 24], [0.5, 0.25], speeds=[48, 96], time=1.0),
        plan(2, 1, ["a", "b"], [16, 32]),
        iteration(1, ["a", "b"], [24, 24], [0.5, 0.25], 1, speeds=[50, 90], time=2.0),
        iteration(5, ["a", "b"], [16, 32], [0.3, 0.3], 1, time=3.0),
    )
    job = managed.job
    assert (job.header.total, job.header.policy) == (48, "proportional")
    told = view.now(job)
    assert [(one["iteration"], one["plan"]) for one in told["rows"]] == [(0, 0), (1, 0), (5, 1)]
    assert told["rows"][1]["times"] == [0.5, 0.25]
    assert [one["kind"] for one in told["events"]] == ["plan", "plan"]
    predicted = [one.row.predicted_speeds for one in job.recent]
    assert predicted[0] is None
    assert [list(speeds) for speeds in predicted[1:] if speeds is not None] == [[48, 96], [50, 90]]


def test_members_are_who_the_events_are_about_whatever_their_order():
    managed = Followed(
        CREATED,
        plan(0, 0, ["a", "b"], [24, 24]),
        iteration(0, ["a", "b"], [24, 24], [0.5, 0.25]),
        plan(1, 1, ["c", "b"], [10, 38]),
        iteration(1, ["c", "b"], [10, 38], [0.1, None], 1),
        {"event": "ended", "time": 9.0, "job": "j", "iteration": 2, "reason": "all left"},
    )
    told = view.now(managed.job)
    assert view.about(managed.job)["workers"] == ["a", "b", "c"]
    assert told["rows"][1]["batch_sizes"] == [None, 38, 10]
    assert told["rows"][1]["times"] == [None, None, 0.1]
    assert [(one["kind"], one["worker"], one["batch_sizes"]) for one in told["events"][:4]] == [
        ("plan", None, [24, 24]),
        ("leave", "a", None),
        ("join", "c", None),
        ("plan", None, [38, 10]),
    ]
    assert told["ended"] == "all left"


def test_a_job_that_goes_back_is_another_run():
    managed = Followed(CREATED, plan(7, 0, ["a"], [48]), iteration(7, ["a"], [48], [0.5]))
    first = managed.run
    managed.hear(plan(3, 1, ["a"], [48]), iteration(3, ["a"], [48], [0.5], 1))
    assert managed.run > first
    assert [one.row.iteration for one in managed.job.recent] == [3]


def test_a_dashboard_that_begins_again_tells_of_another_run():
    begun = CREATED, plan(0, 0, ["a"], [48])
    first = Followed(*begun, *(iteration(k, ["a"], [48], [0.5]) for k in range(3))).run
    time.sleep(0.002)
    # It hears only the last events again, so that its count of iterations is another one.
    assert Followed(CREATED, iteration(2, ["a"], [48], [0.5])).run > first


def test_cpu_of_a_row_is_that_of_its_start_where_it_is_told():
    begun = CREATED, plan(0, 0, ["a", "b"], [24, 24])
    told = iteration(0, ["b", "a"], [24, 24], [0.5, 0.25]) | {"cpu": [0.5, None]}
    silent = iteration(1, ["b", "a"], [24, 24], [0.5, 0.25]) | {"cpu": [None, None]}
    managed = Followed(*begun, told)
    # C at the end of iteration 0, as nothing is nearer to its start.
    assert view.now(managed.job)["last"]["cpu"] == [None, 0.5]
    managed.hear(silent)
    assert view.now(managed.job)["last"]["cpu"] == [None, 0.5]
    managed.hear(silent | {"iteration": 2})
    assert view.now(managed.job)["last"]["cpu"] is None


def test_events_that_make_no_sense_are_told_and_survived():
    managed = Followed()
    for text in ('{"job": 3}', "{}", '{"job":"j","event":"iteration","time":1}'):
        managed.stream.put(json.loads(text))
    managed.stream.put(iteration(0, ["a"], [48], [0.5]))
    assert managed.source.poll()
    assert [entry.job for entry in managed.source.entries()] == ["j"]
    assert "not understood" in (managed.source.problem or "")


def test_malformed_event_costs_neither_its_job_nor_the_others_of_the_poll():
    managed = Followed(
        plan(0, 0, ["a", "b"], [24, 24, 24]),
        *(
            iteration(k, ["a", "b"], [24, 24], [0.5, 0.25]) | {"job": name}
            for k in range(3)
            for name in ("j", "other")
        ),
    )
    assert [one.row.iteration for one in managed.job.recent] == [1, 2]
    other = managed.source.read(key_of("other"))
    assert other is not None
    assert [one.row.iteration for one in other.job.recent] == [1, 2]
    assert "not understood" in (managed.source.problem or "")


def test_records_that_do_not_fit_are_left_out_and_noted_once(monkeypatch):
    managed = Followed(*(iteration(k, ["a"], [48], [0.5]) for k in range(2)))
    row = managed.job.recent[-1].row
    wide = replace(row, iteration=2, batch_sizes=[24, 24], times=[0.5, 0.5], waiting=None,
                   predicted_speeds=None)  # fmt: skip
    records = [("none", row), ("j", wide), ("j", replace(row, iteration=3))]
    monkeypatch.setattr(managed.source._follower, "poll", lambda most: records)
    assert managed.source.poll()
    problem = managed.source.problem
    assert "'none'" in (problem or "")
    assert [one.row.iteration for one in managed.job.recent][-1] == 3
    assert managed.source.poll()
    assert managed.source.problem == problem
    assert [entry.job for entry in managed.source.entries()] == ["j"]


def test_new_jobs_are_followed_however_many_there_were(monkeypatch):
    monkeypatch.setattr("evenstep.runlog.follower.MOST_JOBS", 2)
    managed = Followed(
        *(
            iteration(at, ["w"], [48], [0.5], time=float(at)) | {"job": name}
            for at, name in enumerate("abca")
        )
    )
    assert [entry.job for entry in managed.source.entries()] == ["a", "c"]


@pytest.fixture(scope="module")
def manager(tmp_path_factory):
    with running(log=tmp_path_factory.mktemp("manager") / "log") as started:
        yield started


def test_a_real_manager_is_followed_and_missed_when_it_goes(manager):
    stream = ManagerStream(parse_address(manager.url.removeprefix("http://")))
    source = Managed(ManagerFollower(stream), "manager")
    source.start()
    try:
        settings = {"workers": 2, "total": 60, "policy": "proportional", "predictor": "ema"}
        clients = [manager.connect("seen", name, **settings) for name in ("w0", "w1")]
        boundary(clients, 0)
        boundary(clients, 1, 100.0, 50.0)

        def told():
            source.poll()
            entries = [entry for entry in source.entries() if entry.job == "seen"]
            reading = source.read(entries[0].key) if entries else None
            return reading is not None and reading.job.last is not None and reading.job

        until(told, "the iteration")
        job = told()
        assert job.last.row.batch_sizes.tolist() == [10, 10]
        assert job.last.row.times.tolist() == pytest.approx([0.1, 0.2])
        assert (job.header.total, job.header.policy) == (60, "proportional")
        for client in clients:
            client.leave()
        until(lambda: (job := told()) and job.end is not None, "the end")
        manager.stop()
        until(lambda: source.problem is not None, "that it is gone")
        assert "manager" in (source.problem or "")
    finally:
        stream.close()
