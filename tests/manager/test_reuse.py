"""Learned state, including trained networks, is saved and reused by other jobs."""

import threading
from typing import Any

import numpy as np
import pytest

from evenstep.errors import InvalidSetting, Refused, UnknownJob
from evenstep.manager.job import Job
from evenstep.manager.job_settings import JobSettings
from evenstep.manager.job_store import LearnedState, load_all, save
from evenstep.manager.jobs import Jobs
from evenstep.predictors import learned as networks
from tests.manager.managers import boundary, running, said, until

EMA = {"policy": "proportional", "predictor": "ema"}
NARX: dict[str, Any] = {"policy": "proportional", "predictor": "narx:start=30,retrain=1000"}
ENOUGH = 35


def run_job(job, num_iterations, speeds):
    """Let the workers of a job join and send reports, from iteration 0 on."""
    for worker in speeds:
        job.join(worker, 0, 5.0, now=0.0)
    go_on(job, range(num_iterations), speeds)


def go_on(job, iterations, speeds):
    rng = np.random.default_rng(0)
    for k in iterations:
        for worker, speed in speeds.items():
            noisy = speed * float(np.exp(0.05 * rng.standard_normal())) if k else None
            job.report(said(worker, k, noisy), None, now=0.0)


def adopt_training(job, speeds, prefix="predictor"):
    """Send reports until a running training is finished and adopted."""

    def trained():
        go_on(job, range(job.iteration, job.iteration + 1), speeds)
        return parameters(job.knowledge, prefix) is not None

    until(trained, "the end of a training")


def parameters(learned, prefix="predictor"):
    """Return the networks that were trained on each worker's own samples, or None."""
    assert isinstance(learned, LearnedState)
    own = learned.state[f"{prefix}.models.own"]
    return learned.state[f"{prefix}.models.parameters"].tolist() if own.all() else None


def saved(folder, job):
    (found,) = (one for one in load_all(folder, complain=pytest.fail) if one.job == job)
    return found


def test_another_job_begins_with_what_was_learned_of_workers_with_the_same_names(manager, job):
    first = [manager.connect(f"{job}-a", w, workers=2, total=60, **EMA) for w in "ab"]
    boundary(first, 0)
    boundary(first, 1, 10.0, 50.0)
    made = manager.command(
        "create", f"{job}-b", "--workers", 3, "--total", 120, "--reuse", f"{job}-a",
        "--policy", "proportional", "--predictor", "ema",
    )  # fmt: skip
    assert f"reuses what {job}-a has learned" in made
    settings = {"workers": 3, "total": 120, **EMA}
    second = [manager.connect(f"{job}-b", w, reuse=f"{job}-a", **settings) for w in "abc"]
    # c is a newcomer, which counts as a typical worker: the mean of 10 and 50 samples a second.
    assert boundary(second, 0)[0].sizes.tolist() == [13, 67, 40]
    for client in (*first, *second):
        client.leave()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"predictor": "median"}, "must be of the kind of its ema, got median"),
        ({"policy": "even"}, "must be of the kind of its ema, got none"),
        ({"reuse": "nobody"}, "a job to reuse must exist, got nobody"),
        ({"reuse": "idle"}, "must have learned something, got idle"),
    ],
)
def test_what_does_not_fit_is_refused_and_no_job_is_made(manager, job, settings, reason):
    other = manager.connect(f"{job}-a", "a", workers=1, total=60, **EMA)
    manager.command(
        "create", "idle", "--workers", 1, "--total", 60,
        "--policy", "proportional", "--predictor", "ema",
    )  # fmt: skip
    asked = {"workers": 1, "total": 60, **EMA, "reuse": f"{job}-a", **settings}
    with pytest.raises(Refused, match=reason):
        manager.connect(job, "a", **asked)
    assert job not in manager.status()
    other.leave()


def test_reuse_must_come_with_settings(manager, job):
    with pytest.raises(InvalidSetting, match=r"^reuse .*workers and total"):
        manager.connect(job, "a", reuse="other")


def test_predictor_with_other_settings_is_refused():
    jobs = Jobs()
    run_job(jobs.create("a", JobSettings(1, 60, **NARX)), 2, {"w": 10.0})
    other = {**NARX, "predictor": "narx:start=30,history=2000"}
    with pytest.raises(InvalidSetting, match=r"settings of narx:start=30,retrain"):
        jobs.create("b", JobSettings(1, 60, **other), reuse="a")
    with pytest.raises(UnknownJob):
        jobs.find("b")


@pytest.mark.parametrize(
    ("predictor", "prefix", "enough"),
    [(NARX["predictor"], "predictor", ENOUGH), ("best_of:narx=true", "predictor.narx", 505)],
)
def test_inherited_networks_outlive_a_manager_that_is_killed_before_the_first_run(
    tmp_path, predictor, prefix, enough
):
    jobs, speeds = Jobs(), {"a": 10.0, "b": 30.0}
    settings = JobSettings(2, 60, "proportional", predictor)
    job = jobs.create("first", settings)
    run_job(job, enough, speeds)
    adopt_training(job, speeds, prefix)
    heir = jobs.create("second", settings, reuse="first")
    save(tmp_path, heir.saved())
    again = Job.restored(saved(tmp_path, "second"), now=0.0)
    run_job(again, 1, speeds)
    assert parameters(again.knowledge, prefix) == parameters(job.knowledge, prefix) is not None
    for one in (job, again):
        one.close()


def test_trained_networks_outlive_a_manager_that_is_killed_and_are_reused(tmp_path):
    state = tmp_path / "state"
    with running("--state", state, log=tmp_path / "log") as manager:
        clients = [manager.connect("j", w, workers=2, total=60, **NARX) for w in "ab"]
        k = 0

        def trained():
            nonlocal k
            boundary(clients, k, *((10.0 + k % 3, 30.0 + k % 2) if k else ()))
            k += 1
            there = (state / "j.job.npz").exists()
            return there and parameters(saved(state, "j").running) is not None

        until(trained, "saved networks")
        before = parameters(saved(state, "j").running)
        manager.kill()
        boundary(clients, k, 10.0, 30.0)
        manager.start()
        until(lambda: all(client.connected for client in clients), "both to reconnect")
        heirs = [manager.connect("k", w, workers=2, total=80, reuse="j", **NARX) for w in "ab"]
        boundary(heirs, 0)
        boundary(clients, k + 1, 10.0, 30.0)
        for client in (*clients, *heirs):
            client.leave()
        manager.stop()
        assert parameters(saved(state, "j").learned) == before
        assert parameters(saved(state, "k").learned) == before


def test_rounds_go_on_while_a_training_does_and_a_lost_one_begins_again(tmp_path, monkeypatch):
    train, may_end, speeds = networks._train, threading.Event(), {"a": 10.0, "b": 30.0}

    def slow(*arguments):
        may_end.wait(60.0)
        return train(*arguments)

    monkeypatch.setattr(networks, "_train", slow)
    job = Job("j", JobSettings(2, 60, **NARX))
    run_job(job, ENOUGH + 100, speeds)
    assert job.iteration == ENOUGH + 100
    assert parameters(job.knowledge) is None
    # The manager is killed now: only the training is lost.
    save(tmp_path, job.saved())
    monkeypatch.setattr(networks, "_train", train)
    again = Job.restored(saved(tmp_path, "j"), now=0.0)
    adopt_training(again, speeds)
    assert again.iteration < ENOUGH + 1000
    may_end.set()
    for one in (job, again):
        one.close()
