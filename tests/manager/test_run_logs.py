"""Run logs of the manager: their content, and jobs that continue when the disk fails."""

import contextlib
import errno
import json
import re
import shutil

import numpy as np
import pytest

from evenstep import runlog
from evenstep.cli.main import main
from evenstep.core import Report
from evenstep.manager import run_logs
from evenstep.manager.job import Job
from evenstep.manager.job_settings import JobSettings, safe_name
from evenstep.manager.notifications import Notifications
from evenstep.manager.run_logs import RunLogs
from tests.manager.managers import boundary, running, said, until

SETTINGS = JobSettings(2, 60, "proportional", "ema", elastic=True)


class Run:
    """A job without a network whose boundaries go to run logs in a folder."""

    def __init__(self, folder, *workers):
        notifications = Notifications()
        self.logs = RunLogs(folder, lambda name: SETTINGS)
        notifications.listen(self.logs.receive)
        self.job = Job("j", SETTINGS, notifications=notifications)
        for worker in workers:
            self.job.join(worker, 0, 5.0, now=0.0)

    def close(self, iteration, **speeds):
        for worker, speed in speeds.items():
            self.job.report(said(worker, iteration, speed), None, now=0.0)


@contextlib.contextmanager
def writing(run):
    run.logs.start()
    yield
    run.logs.close()


def only_log(folder):
    (path,) = folder.glob("*.jsonl")
    return runlog.read(path)


def test_report_reads_the_log_of_a_job_that_ran_through_a_manager(tmp_path, capsys):
    folder = tmp_path / "logs"
    with running("--logs", folder, log=tmp_path / "log") as manager:
        options = {"workers": 2, "total": 60, "policy": "proportional", "predictor": "ema"}
        clients = [manager.connect("the:job", w, **options) for w in "ab"]
        boundary(clients, 0)
        for k in range(1, 20):
            boundary(clients, k, 10.0, 20.0)
        for client in clients:
            client.leave()
        manager.stop()
    (path,) = folder.glob("*.jsonl")
    assert path.name.startswith("the%3Ajob.run-1.2")
    run_log = runlog.read(path)
    assert (run_log.header.job, run_log.header.source) == ("the:job", "measured")
    assert run_log.ended and run_log.complete
    assert main(["report", str(path), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["job"] == "the:job"
    assert main(["report", str(path), "-o", str(tmp_path / "report.html")]) == 0
    assert "Straggler: a, " in capsys.readouterr().out
    assert "the:job" in (tmp_path / "report.html").read_text()


def test_row_has_the_usage_and_prediction_of_its_start_and_the_times_of_its_end(tmp_path):
    with writing(run := Run(tmp_path, "a", "b")):
        run.close(0, a=None, b=None)
        run.close(1, a=10.0, b=20.0)
        run.close(2, a=12.0, b=20.0)
    log = only_log(tmp_path)
    (segment,) = log.segments
    assert segment.workers == ("a", "b")
    assert segment.iterations.tolist() == [0, 1]
    assert segment.plans.tolist() == [0, 1]
    assert segment.batch_sizes.tolist() == [[10, 10], [10, 10]]
    np.testing.assert_allclose(segment.times, [[1.0, 0.5], [10 / 12, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(segment.waiting, [[0, 0.5], [0, 10 / 12 - 0.5]], rtol=1e-6)
    np.testing.assert_allclose(segment.predicted_speeds[1], [10.0, 20.0], rtol=1e-6)
    plans = [event for event in log.events if event.kind == "plan"]
    assert [(event.plan, event.batch_sizes) for event in plans] == [(0, (30, 30)), (1, (20, 40))]
    assert not log.ended  # The manager stopped, and the job may continue.


def test_time_that_comes_late_stands_in_the_row_of_its_own_iteration(tmp_path):
    with writing(run := Run(tmp_path, "a", "b")):
        run.close(0, a=None, b=None)
        run.close(1, a=10.0, b=None)
        for k in range(2, 5):
            late = Report("b", k, 10 * k, 1.0, measured=k - 2)
            run.job.report(late, None, now=0.0)
            run.close(k, a=10.0 * k)
    (segment,) = only_log(tmp_path).segments
    assert segment.iterations.tolist() == [0, 1, 2, 3]
    # The row of iteration 0 was written before anybody knew that a time would come late.
    assert segment.batch_sizes.tolist() == [[10, 0], [10, 30], [10, 40], [10, 0]]
    expected = [[1.0, np.nan], [0.5, 1.0], [1 / 3, 1.0], [0.25, np.nan]]
    np.testing.assert_allclose(segment.times, expected, rtol=1e-6)


def test_log_records_changing_members_and_the_end(tmp_path):
    with writing(run := Run(tmp_path, "a", "b")):
        run.close(0, a=None, b=None)
        run.job.join("c", 0, 5.0, now=0.0)
        run.close(1, a=10.0, b=20.0)
        run.close(2, a=10.0, b=20.0, c=None)
        run.close(3, a=10.0, b=20.0, c=30.0)
        run.job.leave("a")
        run.close(4, b=20.0, c=30.0)
        for worker in "bc":
            run.job.leave(worker)
    log = only_log(tmp_path)
    assert [(s.workers, s.iterations.tolist()) for s in log.segments] == [
        (("a", "b"), [0, 1]),
        (("a", "b", "c"), [2]),
        (("b", "c"), [3]),
    ]
    kinds = [(event.kind, event.worker) for event in log.events if event.kind != "plan"]
    assert kinds == [("join", "c"), ("leave", "a"), ("end", None)]
    assert log.ended


def test_job_that_goes_back_gets_another_log(tmp_path):
    with writing(run := Run(tmp_path, "a", "b")):
        for k in range(3):
            run.close(k, a=10.0 if k else None, b=20.0 if k else None)
        for worker in "ab":
            run.job.disconnect(worker, now=0.0)
        run.job.join("a", 1, 5.0, now=0.0)
        run.job.join("b", 1, 5.0, now=0.0)
        run.close(1, a=None, b=None)
        run.close(2, a=10.0, b=20.0)
    logs = sorted(tmp_path.glob("*.jsonl"))
    assert [path.name.split(".")[1] for path in logs] == ["run-1", "run-2"]
    assert [runlog.read(path).segments[0].iterations.tolist() for path in logs] == [[0, 1], [1]]


def test_long_log_gets_thinner(tmp_path, monkeypatch):
    monkeypatch.setattr(run_logs, "PORTION", 2_000)
    with writing(run := Run(tmp_path, "a", "b")):
        for k in range(200):
            run.close(k, a=10.0 if k else None, b=20.0 if k else None)
    steps = np.diff(only_log(tmp_path).segments[0].iterations)
    assert steps.min() == 1 and steps.max() >= 4
    assert (np.diff(steps) >= 0).all()


def test_disk_that_fails_is_reported_and_the_job_goes_on(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with writing(run := Run(tmp_path, "a", "b")):
        run.close(0, a=None, b=None)
        run.close(1, a=10.0, b=20.0)
        until(lambda: run.logs._num_given == run.logs._num_taken, "the writing")
        monkeypatch.setattr(runlog.RunLogWriter, "iteration", full)
        run.close(2, a=10.0, b=20.0)
        run.close(3, a=10.0, b=20.0)
        plan = run.job.plan_for(3)
        assert plan is not None and plan.sizes.tolist() == [20, 40]
        until(lambda: run.logs.num_failures, "the failure")
    assert re.search(r"\bjob \S+: .*\brun log\b.*\[Errno 28\]", caplog.text)
    assert run.logs.num_failures == 1
    assert only_log(tmp_path).segments[0].iterations.tolist() == [0]


def test_folder_that_is_gone_is_tried_again_after_a_while(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(run_logs, "RETRY", 0.0)
    folder = tmp_path / "logs"
    with writing(run := Run(folder, "a", "b")):
        run.close(0, a=None, b=None)
        until(lambda: run.logs.num_failures == 1, "the failure")
        folder.mkdir()
        run.close(1, a=10.0, b=20.0)
        run.close(2, a=10.0, b=20.0)
    assert only_log(folder).segments[0].iterations.tolist() == [1]


def test_iterations_are_left_out_where_the_disk_is_too_slow(tmp_path, monkeypatch):
    monkeypatch.setattr(run_logs, "MAX_PENDING", 100)
    run = Run(tmp_path, "a", "b")
    # Nothing is taken before the thread runs: four boundaries of 22 fit.
    for k in range(10):
        run.close(k, a=10.0 if k else None, b=20.0 if k else None)
    assert run.logs.num_left_out == 6
    with writing(run):
        pass
    assert only_log(tmp_path).segments[0].iterations.tolist() == [0, 1, 2]


def test_disk_that_fails_is_seen_and_a_real_job_goes_on(tmp_path):
    folder = tmp_path / "logs"
    with running("--logs", folder, log=tmp_path / "log") as manager:
        shutil.rmtree(folder)
        with manager.connect("j", "a", workers=1, total=8) as client:
            for k in range(3):
                assert client.boundary(said("a", k)).sizes.tolist() == [8]
            until(
                lambda: "evenstep_run_log_failures_total 1.0" in manager.get("/metrics")[1],
                "the failure",
            )
            assert manager.get("/healthz")[0] == 200
        assert re.search(r"\bjob j: .*\brun log\b.*\[Errno 2\]", manager.log)


@pytest.mark.parametrize("name", ["a/../../b", "x" * 128, ":" * 128])
def test_names_of_files_are_safe(name):
    safe = safe_name(name)
    assert "/" not in safe and len(safe) < 190
    assert safe != safe_name(name[:-1] + "y")
