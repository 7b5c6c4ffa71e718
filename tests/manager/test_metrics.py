"""Metrics: a scrape shows what the job did."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from evenstep.core import Reports
from evenstep.manager.job_history import BUCKETS, JobHistory
from evenstep.manager.job_settings import JobSettings
from evenstep.manager.jobs import Jobs
from evenstep.manager.metrics import render, snapshot_of
from evenstep.manager.service import Service
from tests.manager.managers import boundary, running, said, until


def figures(text):
    """Return all samples, by name and labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_scrape_says_what_the_job_did(manager, job):
    clients = [
        manager.connect(job, w, workers=2, total=60, policy="proportional", predictor="ema")
        for w in "ab"
    ]
    boundary(clients, 0)
    boundary(clients, 1, 10.0, 20.0)
    boundary(clients, 2, 10.0, 20.0)
    status, text = manager.get("/metrics")
    assert status == 200
    seen = figures(text)
    assert seen["evenstep_batch_size", job, "a"] == 20
    assert seen["evenstep_batch_size", job, "b"] == 40
    assert seen["evenstep_batch_processing_time_seconds", job, "a"] == pytest.approx(1.0)
    assert seen["evenstep_batch_processing_time_seconds", job, "b"] == pytest.approx(0.5)
    assert seen["evenstep_waiting_time_seconds", job, "a"] == 0
    assert seen["evenstep_waiting_time_seconds", job, "b"] == pytest.approx(0.5)
    assert seen["evenstep_predicted_speed", job, "a"] == pytest.approx(10.0)
    assert seen["evenstep_predicted_speed", job, "b"] == pytest.approx(20.0)
    assert seen["evenstep_iterations_total", job] == 3
    assert seen["evenstep_plan_changes_total", job] == 1
    assert seen["evenstep_decision_seconds_count", job] == 3
    assert 0 < seen["evenstep_decision_seconds_sum", job] < 60
    assert seen["evenstep_members", job] == seen["evenstep_connected", job] == 2
    assert seen["evenstep_iteration", job] == 3
    assert seen["evenstep_jobs", "running"] >= 1
    assert seen["evenstep_connections",] >= 2
    for client in clients:
        client.leave()
    _, text = manager.get("/metrics")
    assert job not in text


def test_refused_requests_and_lost_leases_are_counted(tmp_path, job):
    # A manager of its own: leases of other jobs would be counted, too.
    with running(log=tmp_path / "log") as manager:

        def count(name, *labels):
            return figures(manager.get("/metrics")[1]).get((name, *labels), 0)

        client = manager.connect(job, "a", workers=1, total=8, lease=0.5)
        with pytest.raises(Exception, match="is already connected"):
            manager.connect(job, "a", lease=0.5)
        assert count("evenstep_refused_requests_total", "NAME_TAKEN") == 1
        assert count("evenstep_leases_lost_total") == 0
        client.close()
        until(lambda: count("evenstep_leases_lost_total") == 1, "the end of the lease")


def test_openmetrics_is_given_to_who_asks_and_nonsense_is_harmless(manager):
    accept = "application/openmetrics-text;version=1.0.0"
    status, text = manager.get("/metrics", Accept=accept)
    assert (status, text.endswith("# EOF\n")) == (200, True)
    assert manager.get("/metrics", Accept=accept.replace("1.0.0", "one.two"))[0] == 200


def test_decisions_are_counted_by_how_long_they_took(monkeypatch):
    moments = iter([0.0, BUCKETS[2], 10.0, 11.5])
    monkeypatch.setattr("evenstep.manager.job_history.time.perf_counter", lambda: next(moments))
    history = JobHistory()
    planner = JobSettings(2, 8, "even").planner(["a", "b"])
    for k in range(2):
        history.decide(planner, Reports.silent(k, 2))
    assert history.decisions[2] == history.decisions[-1] == 1
    assert sum(history.decisions) == history.num_iterations == 2
    assert history.decision_seconds == BUCKETS[2] + 1.5


def test_job_without_workers_is_only_counted_and_unknown_values_are_left_out():
    jobs = Jobs()
    jobs.create("idle", JobSettings(1, 8))
    gathering = jobs.create("gathering", JobSettings(2, 8))
    gathering.join("a", 0, 5.0, now=0.0)
    begun = jobs.create("begun", JobSettings(2, 8))
    for worker in "ab":
        begun.join(worker, 0, 5.0, now=0.0)
    for worker in "ab":
        begun.report(said(worker, 0), None, now=0.0)
    text = render(snapshot_of(Service(jobs, lambda: 0.0)))[0].decode()
    seen = figures(text)
    assert [seen["evenstep_jobs", s] for s in ("running", "gathering", "idle")] == [1, 1, 1]
    assert 'job="idle"' not in text
    assert seen["evenstep_members", "gathering"] == 1
    assert seen["evenstep_batch_size", "begun", "a"] == 4
    assert ("evenstep_batch_processing_time_seconds", "begun", "a") not in seen
    assert not any(math.isnan(value) for value in seen.values())


def test_labels_are_escaped():
    jobs = Jobs()
    odd = 'a"b\\c\nd'
    # Names that the manager accepts need no escaping; others are escaped.
    jobs._jobs[odd] = job = jobs.create("x", JobSettings(1, 8))
    job.name = odd
    job.join("w", 0, 5.0, now=0.0)
    seen = figures(render(snapshot_of(Service(jobs, lambda: 0.0)))[0].decode())
    assert seen["evenstep_batch_size", odd, "w"] == 8
