"""A manager's events as records: the rows, plans and members of the run log of the same job."""

import itertools
from dataclasses import asdict

import numpy as np
import pytest

from evenstep import Report, Usage, runlog
from evenstep.errors import EvenstepError
from evenstep.insight.dashboard.managed import Managed
from evenstep.insight.dashboard.source import key_of
from evenstep.manager.events import EventStream
from evenstep.manager.job import Job
from evenstep.manager.job_settings import JobSettings
from evenstep.manager.notifications import Notification, Notifications
from evenstep.manager.run_logs import RunLogs
from evenstep.runlog import Event, Header, IterationRow
from evenstep.runlog.follower import JobFollower, ManagerFollower
from evenstep.runlog.manager_events import JobRecords
from evenstep.runlog.manager_stream import ManagerStream, parse
from evenstep.runlog.run_log import RunLog

SETTINGS = JobSettings(2, 60, "proportional", "ema", elastic=True)


class Training:
    """A job without a network: its run log goes to a folder, its events are kept."""

    def __init__(self, folder, monkeypatch, interval=1.0):
        self.now = 1.0
        self._interval = interval
        monkeypatch.setattr("evenstep.manager.job_history.time.monotonic", lambda: self.now)
        self._stream = EventStream(clock=lambda: self.now)
        self._logs, self._folder = RunLogs(folder, lambda name: SETTINGS), folder
        self._notifications = Notifications()
        self._notifications.listen(self._logs.receive)
        self._notifications.listen(self._stream.receive)
        self._notifications.notify(
            Notification("created", "j", details={"settings": asdict(SETTINGS)})
        )
        self.job = Job("j", SETTINGS, notifications=self._notifications)

    def join(self, workers, iteration=0):
        for worker in workers:
            self.job.join(worker, iteration, 5.0, now=0.0)

    def run(self, iterations, workers, seed=0):
        """Close boundaries, with other speeds in every iteration and usage at every boundary."""
        rng = np.random.default_rng(seed)
        for k in iterations:
            self.now += self._interval
            for worker in workers:
                size, time = (None, None) if k == 0 else (10 + k, 10 / rng.uniform(5.0, 50.0))
                usage = Usage(cpu=float(rng.uniform(0.1, 1.0)))
                self.job.report(Report(worker, k, size, time, usage), None, now=0.0)

    def run_late(self, iterations, workers, late, seed=0):
        """Close boundaries at which every time is of an iteration before the last one."""
        rng = np.random.default_rng(seed)
        for k in iterations:
            self.now += self._interval
            for worker in workers:
                usage, measured = Usage(cpu=float(rng.uniform(0.1, 1.0))), k - 1 - late
                report = Report(worker, k, usage=usage)
                if measured >= 0:
                    time = 10 / rng.uniform(5.0, 50.0)
                    report = Report(worker, k, 10 + measured, time, usage, None, measured)
                self.job.report(report, None, now=0.0)

    @property
    def events(self):
        """All events, as a follower decodes them."""
        texts = b"".join(event.text for event in self._stream.after(0))
        return [data for _, data in parse(texts.splitlines(keepends=True))]

    def run_logs(self) -> list[RunLog]:
        self._logs.start()
        self._logs.close()
        return [runlog.read(path) for path in sorted(self._folder.glob("*.jsonl"))]


def stream_of(events):
    stream = ManagerStream(("127.0.0.1", 1))
    stream.problem = None
    for data in events:
        stream.put(data)
    return stream


def watched(events):
    """Return the records of a job as `evenstep watch --manager` gets them."""
    return JobFollower(ManagerFollower(stream_of(events))).poll()


def shown(events):
    """Return the newest run of a job as `evenstep dashboard --manager` has it."""
    source = Managed(ManagerFollower(stream_of(events)), "manager")
    while source.poll():
        pass
    reading = source.read(key_of("j"))
    assert reading is not None
    return reading.job


def runs_of(records):
    """Return the records of each run."""
    runs: list[list[runlog.Record]] = []
    for record in records:
        if isinstance(record, Header):
            runs.append([])
        runs[-1].append(record)
    return runs


def built(records):
    builder = runlog.RunLogBuilder()
    for record in records:
        builder.add(record)
    return builder.build()


def rows_of(run_log: RunLog):
    """Return everything of every row that a manager tells, with its workers, by iteration."""
    names = ("batch_sizes", "times", "waiting", "predicted_speeds", "cpu")
    plans = labels(run_log)
    return {
        k: (segment.workers, plans[k], *(rounded(getattr(segment, name)[i]) for name in names))
        for segment in run_log.segments
        for i, k in enumerate(segment.iterations.tolist())
    }


def labels(run_log: RunLog):
    """Return the plan of each iteration."""
    return {
        k: plan
        for segment in run_log.segments
        for k, plan in zip(segment.iterations.tolist(), segment.plans.tolist(), strict=True)
    }


def rounded(values):
    return [None if np.isnan(value) else float(f"{value:.4g}") for value in values]


def plans_of(events):
    return [(e.iteration, e.plan, e.batch_sizes, e.reason) for e in events if e.kind == "plan"]


def test_watch_and_dashboard_have_the_rows_and_plans_of_the_managers_run_log(tmp_path, monkeypatch):
    training = Training(tmp_path, monkeypatch)
    training.join("ab")
    training.run(range(9), "ab")
    training.job.leave("a")
    training.job.leave("b")
    (log,) = training.run_logs()
    assert len(set(labels(log).values())) > 4
    records = watched(training.events)
    job = shown(training.events)
    by_watch, by_log = rows_of(built(records)), rows_of(log)
    # A manager sends neither the prediction for the first iteration nor c at its start.
    assert by_watch.pop(0)[:5] == by_log.pop(0)[:5]
    assert by_watch == by_log
    by_dashboard = rows_of(built([job.header, *(one.row for one in job.recent)]))
    del by_dashboard[0]
    assert by_dashboard == by_log
    told = [record for record in records if isinstance(record, Event)]
    # The plan of an iteration that never ended is in no log.
    assert plans_of(told)[:-1] == plans_of(log.events)
    assert list(job.events) == told
    assert told[-1] == log.events[-1]
    header = next(record for record in records if isinstance(record, Header))
    assert header == job.header
    for name in ("job", "source", "workers", "total", "policy", "predictor", "settings"):
        assert getattr(header, name) == getattr(log.header, name)


def test_rows_have_the_workers_of_the_run_log_when_some_join_and_leave(tmp_path, monkeypatch):
    training = Training(tmp_path, monkeypatch)
    training.join("ab")
    training.run(range(3), "ab")
    training.join("c")
    training.run(range(3, 4), "ab", seed=1)
    training.run(range(4, 6), "abc", seed=2)
    training.job.leave("a")
    training.run(range(6, 9), "bc", seed=3)
    (log,) = training.run_logs()
    assert [segment.workers for segment in log.segments] == [("a", "b"), (*"abc",), ("b", "c")]
    run_log = built(watched(training.events))
    without_first = [{k: row for k, row in rows_of(one).items() if k} for one in (run_log, log)]
    assert without_first[0] == without_first[1]
    members = [[e for e in one.events if e.workers is not None] for one in (run_log, log)]
    assert members[0] == members[1] != []
    assert plans_of(run_log.events)[: len(plans_of(log.events))] == plans_of(log.events)
    job = shown(training.events)
    assert {one.row.iteration: one.row.plan for one in job.recent} == labels(log)
    assert job.workers == ("b", "c")


def test_plan_of_a_row_is_right_where_most_iterations_are_not_told(tmp_path, monkeypatch):
    training = Training(tmp_path, monkeypatch, interval=0.03)
    training.join("ab")
    training.run(range(60), "ab")
    (log,) = training.run_logs()
    truth = labels(log)
    rows = [record for record in watched(training.events) if isinstance(record, IterationRow)]
    assert 3 < len(rows) < 10
    assert [row.plan for row in rows] == [truth[row.iteration] for row in rows]
    assert [one.row.plan for one in shown(training.events).recent] == [row.plan for row in rows]


def test_job_that_goes_back_begins_another_run_with_the_plan_in_use(tmp_path, monkeypatch):
    training = Training(tmp_path, monkeypatch)
    training.join("ab")
    training.run(range(6), "ab")
    for worker in "ab":
        training.job.disconnect(worker, now=0.0)
    training.join("ab", iteration=2)
    training.run(range(2, 7), "ab", seed=1)
    logs = training.run_logs()
    runs = [built(run) for run in runs_of(watched(training.events))]
    assert [one.iterations.tolist() for one in runs] == [[0, 1, 2, 3, 4], [2, 3, 4, 5]]
    assert [labels(one) for one in runs] == [labels(one) for one in logs]
    newest = {one.row.iteration: one.row.plan for one in shown(training.events).recent}
    assert newest == labels(logs[1])


@pytest.mark.parametrize("first", range(1, 24))
def test_no_row_has_a_wrong_plan_after_a_gap(tmp_path, monkeypatch, first):
    training = Training(tmp_path, monkeypatch)
    training.join("ab")
    training.run(range(6), "ab")
    training.join("c")
    training.run(range(6, 7), "ab", seed=1)
    training.run(range(7, 16), "abc", seed=2)
    truth = rows_of(training.run_logs()[0])
    events, missed = training.events, {"event": "missed", "first": 1, "last": 2}
    records = watched([*events[:first], missed, *events[first + 5 :]])
    for k, row in rows_of(built(records)).items():
        assert row[:5] == truth[k][:5]
    rows = [record.iteration for record in records if isinstance(record, IterationRow)]
    assert rows[-1] == max(truth)
    notes = [e.text for e in records if isinstance(e, Event) and e.kind == "note"]
    gaps = [b - a - 1 for a, b in itertools.pairwise(rows) if b > a + 1]
    assert notes == [f"{gap} rows missed" for gap in gaps]


@pytest.mark.parametrize("late", [1, 2, 3])
def test_late_times_give_one_run_with_the_rows_of_the_run_log(tmp_path, monkeypatch, late):
    training = Training(tmp_path, monkeypatch)
    training.join("ab")
    training.run_late(range(40), "ab", late)
    (log,) = training.run_logs()
    by_log = rows_of(log)
    assert len(set(labels(log).values())) > 20
    # The first event with figures comes from boundary 2 late + 1: the ones before are not sent.
    first, last = 2 * late + 1, 39 - late
    (run,) = runs_of(watched(training.events))
    run_log = built(run)
    by_watch = rows_of(run_log)
    assert labels(run_log) == {k: number for k, number in labels(log).items() if k < last}
    assert [by_watch[k] for k in range(first, last)] == [by_log[k] for k in range(first, last)]
    starts = {row.iteration: row.start for row in run if isinstance(row, IterationRow)}
    assert [starts[k] for k in range(first, last)] == [float(k) for k in range(first, last)]
    job = shown(training.events)
    assert {one.row.iteration: one.row.plan for one in job.recent} == labels(run_log)


def test_late_times_of_an_older_manager_give_one_run(tmp_path, monkeypatch):
    training = Training(tmp_path, monkeypatch)
    training.join("ab")
    training.run_late(range(40), "ab", 1)
    (log,) = training.run_logs()
    older = [{name: data[name] for name in data if name != "boundary"} for data in training.events]
    (run,) = runs_of(watched(older))
    assert labels(built(run)) == {k: number for k, number in labels(log).items() if k < 38}


@pytest.mark.parametrize("late", [1, 2])
def test_rows_with_late_times_are_right_when_members_change_and_the_job_goes_back(
    tmp_path, monkeypatch, late
):
    training = Training(tmp_path, monkeypatch)
    training.join("ab")
    training.run_late(range(9), "ab", late)
    training.join("c")
    training.run_late(range(9, 10), "ab", late, seed=1)
    training.run_late(range(10, 20), "abc", late, seed=2)
    training.job.leave("a")
    training.run_late(range(20, 30), "bc", late, seed=3)
    for worker in "bc":
        training.job.disconnect(worker, now=0.0)
    training.join("bc", iteration=12)
    training.run_late(range(12, 20), "bc", late, seed=4)
    logs = [rows_of(log) for log in training.run_logs()]
    runs = [rows_of(built(run)) for run in runs_of(watched(training.events))]
    assert len(runs) == len(logs) == 2
    for run, log in zip(runs, logs, strict=True):
        # Workers, plan, batch sizes and times.
        assert {k: row[:4] for k, row in run.items()} == {k: log[k][:4] for k in run}
    assert len(runs[0]) > 15 and len(runs[1]) > 3


def test_late_row_of_the_members_before_is_left_out_once_others_are_announced():
    job = JobRecords("j")
    records = [
        *job.take(plan(0, 0, ["a"], [48])),
        *job.take(plan(2, 1, ["a", "b"], [24, 24])),
        *job.take(plan(3, 2, ["a", "b"], [16, 32])),
        *job.take(iteration(1, ["a", "b"], [48, 0], [0.5, None], 2) | {"boundary": 3}),
        *job.take(iteration(2, ["a", "b"], [24, 24], [0.5, 0.5], 2) | {"boundary": 4}),
    ]
    assert [
        (record.kind if isinstance(record, Event) else "row", record.iteration)
        for record in records
        if not isinstance(record, Header)
    ] == [("plan", 0), ("join", 2), ("plan", 2), ("plan", 3), ("row", 2)]


def test_late_row_of_before_the_job_went_back_is_left_out():
    job = JobRecords("j")
    for data in (
        plan(6, 0, ["a"], [48]),
        iteration(6, ["a"], [48], [0.5]) | {"boundary": 8},
        {"event": "moved", "time": 0.0, "job": "j", "iteration": 3},
    ):
        job.take(data)
    records = [
        *job.take(iteration(7, ["a"], [48], [0.5]) | {"boundary": 3}),
        *job.take(iteration(3, ["a"], [48], [0.5]) | {"boundary": 5}),
    ]
    assert [type(record) for record in records] == [Header, IterationRow]


@pytest.mark.parametrize(
    "wrong",
    [{"batch_sizes": [24, 24, 24]}, {"plan": None}, {"workers": ["a", "a"]}, {"iteration": "x"}],
)
def test_run_begins_with_the_first_good_event_after_a_malformed_one(wrong):
    job = JobRecords("j")
    with pytest.raises((EvenstepError, TypeError, ValueError)):
        job.take(plan(0, 0, ["a", "b"], [24, 24]) | wrong)
    records = [
        *job.take(iteration(0, ["a", "b"], [24, 24], [0.5, 0.25])),
        *job.take(iteration(1, ["a", "b"], [24, 24], [0.5, 0.25])),
    ]
    assert [type(record) for record in records] == [Header, IterationRow]


def test_malformed_settings_are_unknown_settings():
    job = JobRecords("j")
    with pytest.raises(TypeError):
        job.take({"event": "created", "time": 0.0, "job": "j", "settings": None})
    (header, _) = job.take(plan(0, 0, ["a"], [48]))
    assert isinstance(header, Header)
    assert (header.total, header.policy) == (48, "unknown")


def test_job_after_a_malformed_event_is_watched():
    malformed = plan(0, 0, ["a"], [24, 24])
    rows = [iteration(k, ["a"], [48], [0.5]) for k in range(3)]
    records = watched([malformed, *rows])
    assert [type(record) for record in records] == [Header, IterationRow, IterationRow]


def plan(iteration, number, workers, sizes, time=0.0):
    return {
        "event": "plan", "time": time, "job": "j", "iteration": iteration, "plan": number,
        "workers": workers, "batch_sizes": sizes, "reason": "why",
    }  # fmt: skip


def iteration(k, workers, sizes, times, next_plan=0, speeds=None, time=0.0):
    longest = max(t for t in times if t is not None)
    return {
        "event": "iteration", "time": time, "job": "j", "iteration": k, "workers": workers,
        "batch_sizes": sizes, "times": times, "next_plan": next_plan,
        "waiting": [None if t is None else longest - t for t in times], "next_speeds": speeds,
    }  # fmt: skip


def test_job_that_moves_without_another_plan_keeps_the_plan_in_use():
    job = JobRecords("j")
    for data in (
        plan(0, 0, ["a"], [48]),
        plan(5, 1, ["a"], [48]),
        {"event": "moved", "time": 0.0, "job": "j", "iteration": 3},
    ):
        job.take(data)
    # Of iteration 2, nobody knows the plan: the workers went back to before iteration 3.
    assert [type(record) for record in job.take(iteration(2, ["a"], [48], [0.5], 1))] == [Header]
    (row,) = job.take(iteration(3, ["a"], [48], [0.5], 1))
    assert isinstance(row, IterationRow)
    assert (row.iteration, row.plan) == (3, 1)


def test_start_is_when_the_boundary_before_was_closed_and_unknown_where_that_was_not_told():
    job = JobRecords("j")
    records = [
        *job.take(plan(0, 0, ["a"], [48], time=100.0)),
        *job.take(iteration(0, ["a"], [48], [0.5], time=101.5)),
        *job.take(iteration(1, ["a"], [48], [0.5], time=103.0)),
        *job.take(iteration(4, ["a"], [48], [0.5], time=109.0)),
    ]
    starts = [record.start for record in records if isinstance(record, IterationRow)]
    np.testing.assert_equal(starts, [0.0, 1.5, np.nan])


def test_first_job_with_a_row_is_followed_with_all_that_came_before_it():
    created = {"event": "created", "time": 0.0, "job": "late", "settings": {"total": 48}}
    begun = plan(0, 0, ["w"], [48])
    ended = {"event": "ended", "time": 0.0, "job": "idle", "iteration": 1, "reason": "over"}
    row = iteration(0, ["w"], [48], [0.5])
    late = [created, begun | {"job": "late"}, ended, row | {"job": "late"}]
    records = watched([begun | {"job": "idle"}, *late, plan(1, 1, ["x"], [48])])
    assert [type(record) for record in records] == [Header, Event, IterationRow]
    assert isinstance(records[0], Header) and records[0].job == "late"
