"""Two workers that share a kvstore train as a single process would, for all batch sizes."""

import re

import numpy as np
import pytest

from evenstep.runlog import read
from evenstep.training.epochs import Epochs
from tests.manager.managers import running
from tests.mxnet import tasks
from tests.mxnet.cluster import NUM_WORKERS, run

NUM_ITERATIONS = 50
SLEEP, QUIET = 0.2, 14
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mxnet")


@pytest.fixture(scope="module")
def job(folder):
    """One real job that trains several times; and the jobs that its manager had."""
    with running(log=folder / "manager.log") as manager:
        workers = run(folder, timeout=180, address=manager.address, sleep=SLEEP, quiet=QUIET)
        return workers, manager.status()


@pytest.fixture(scope="module")
def on_servers(job):
    return [worker["servers"] for worker in job[0]]


@pytest.fixture(scope="module")
def alone():
    return tasks.train_alone(NUM_ITERATIONS)


def assert_trained_as(workers, alone):
    for worker in workers:
        for ours, theirs in zip(worker["weights"], alone, strict=True):
            # In float32: 1e-6 apart after 7 iterations, 4e-6 after 28, 1.2e-5 after 49.
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=3e-5)


def assert_dealt_as_by_the_core(workers):
    """Iteration k has the samples that the core deals out by the plan of k, for the same seed."""
    epochs = Epochs(tasks.NUM_SAMPLES, tasks.TOTAL, seed=tasks.SEED)
    for k in range(len(workers[0]["seen"])):
        if epochs.position == len(epochs):
            epochs.end()
        for worker in range(NUM_WORKERS):
            seen = workers[worker]["seen"][k]
            dealt = epochs.deal(np.array(seen["sizes"]), worker)
            assert dealt is not None and seen["samples"] == dealt.samples.tolist()
        epochs.advance()


def assert_sizes_changed(workers):
    sizes = [tuple(seen["sizes"]) for seen in workers[0]["seen"]]
    assert sizes == [tuple(seen["sizes"]) for seen in workers[1]["seen"]]
    assert len(set(sizes)) >= 4 and all(sum(both) == tasks.TOTAL for both in sizes)


def test_parameters_updated_on_servers_are_those_of_a_single_process(on_servers, alone):
    assert all(worker["on_store"] for worker in on_servers)
    assert_sizes_changed(on_servers)
    assert_trained_as(on_servers, alone)


def test_samples_are_those_that_the_core_deals(on_servers):
    assert_dealt_as_by_the_core(on_servers)


def test_an_epoch_visits_every_sample_once(on_servers):
    num_iterations = -(-tasks.NUM_SAMPLES // tasks.TOTAL)
    for epoch in range(NUM_ITERATIONS // num_iterations):
        part = slice(epoch * num_iterations, (epoch + 1) * num_iterations)
        visited = [
            sample for worker in on_servers for seen in worker["seen"][part]
            for sample in seen["samples"]
        ]  # fmt: skip
        assert sorted(visited) == list(range(tasks.NUM_SAMPLES))


def test_reports_ride_along_with_the_gradients(on_servers, folder):
    log = read(folder / "run.jsonl")
    assert log.header.job == "mxnet" and len(log.header.workers) == NUM_WORKERS
    (part,) = log.segments
    assert len(part.iterations) == NUM_ITERATIONS == on_servers[0]["iteration"]
    # Emulated speeds: all workers received the times of the timers.
    assert np.all(part.times[5:] > 1)


def test_a_mean_is_that_of_all_samples(on_servers):
    sizes = on_servers[0]["seen"][-1]["samples"], on_servers[1]["seen"][-1]["samples"]
    share = len(sizes[1]) / (len(sizes[0]) + len(sizes[1]))
    assert [worker["mean"] for worker in on_servers] == pytest.approx([share] * 2)


def test_settings_must_be_the_same_on_all_workers(on_servers):
    for worker in on_servers:
        assert re.search(r"\bpolicy must be the same\b", worker["disagreement"])


def test_parameters_begin_with_their_values_however_soon_gradients_are_pushed(job):
    """MXNet itself may pull the first value of a key after a push has changed it."""
    first = tasks.train_alone(1)
    for weights in (weights for worker in job[0] for weights in worker["first"]):
        assert_trained_as([{"weights": weights}], first)


@pytest.mark.parametrize("how", ["blocking", "non-blocking"])
def test_plans_of_a_manager_train_as_a_single_process(job, alone, how):
    workers = [worker[how] for worker in job[0]]
    assert not job[1][how]["running"]
    assert all(worker["used"] in worker["held"] and worker["used"] > 3 for worker in workers)
    assert not any(worker["on_store"] for worker in workers)
    assert_sizes_changed(workers)
    assert_trained_as(workers, alone)
    assert_dealt_as_by_the_core(workers)


def test_module_trains_as_a_single_process(job):
    workers = [worker["module"] for worker in job[0]]
    assert_sizes_changed(workers)
    assert len(workers[0]["seen"]) == 49
    assert_trained_as(workers, tasks.train_alone(49))
    assert_dealt_as_by_the_core(workers)


def test_module_is_bound_anew_where_the_size_is_another_and_only_there(job):
    for worker in job[0]:
        counts = [len(seen["samples"]) for seen in worker["module"]["seen"]]
        bound = [tasks.TOTAL // NUM_WORKERS, *counts[:-1]]
        changes = sum(count != before for before, count in zip(bound, counts, strict=True))
        assert worker["module"]["reshapes"] == changes > 10


@pytest.mark.parametrize("where", ["workers", "servers"])
def test_a_sleeping_colleague_does_not_change_what_is_measured(job, folder, where):
    """Whether parameters are updated on workers or on servers."""
    (part,) = read(folder / f"sleep-on-{where}.jsonl").segments
    phases = slice(4, QUIET), slice(QUIET, None)
    before, after = (np.median(part.times[phase], axis=0) for phase in phases)
    awake, sleeper = after - before
    assert sleeper > 0.9 * SLEEP
    assert awake < 0.3 * SLEEP
