"""The workers of the Ray engine, with fake calls; needs no Ray."""

import numpy as np
import pytest

from evenstep.errors import EngineFailed
from evenstep.simulator.ray_engine import workers as module
from evenstep.simulator.ray_engine.calls import Gone
from evenstep.simulator.ray_engine.ray_settings import RaySettings
from evenstep.simulator.ray_engine.worker_actor import WorkerDone, WorkerTask
from evenstep.simulator.ray_engine.workers import Back, Died, Finished, RayWorkers

TASK = WorkerTask(0, 0, np.arange(4), duration=0.0)


class Call:
    """A method of an actor; a call returns a reference: the worker, the method and the ticket."""

    def __init__(self, worker, name):
        self._ref = (worker, name)

    def options(self, **options):
        return self

    def remote(self, *arguments):
        return (*self._ref, *[a.ticket for a in arguments if isinstance(a, WorkerTask)])


class Actor:
    def __init__(self, worker):
        self._worker = worker

    def __getattr__(self, name):
        return Call(self._worker, name)


@pytest.fixture
def results(monkeypatch):
    """Results by reference, to be filled by tests; a reference without one never completes."""
    killed: list[object] = []
    results: dict[object, object] = {"killed": killed}

    def get(ref, patience):
        result = results.pop(ref)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(
        module, "first", lambda refs, deadline: next((r for r in refs if r in results), None)
    )
    monkeypatch.setattr(module, "get", get)
    monkeypatch.setattr(module, "kill", killed.append)
    return results


def workers_of(num_workers, restarts=1):
    return RayWorkers(Actor, num_workers, RaySettings(restarts=restarts))


def test_events_are_returned_in_order(results):
    workers = workers_of(2)
    for worker in (0, 1):
        workers.start(worker, TASK, [])
    results[1, "compute", 0] = WorkerDone(version=3)
    assert workers.wait() == Finished(1, WorkerDone(version=3))
    results[0, "compute", 0] = Gone("died")
    before = workers.handles[0]
    assert workers.wait() == Died(0, "died")
    assert results["killed"] == [before] and workers.handles[0] is not before
    results[0, "ready"] = 4711
    assert workers.wait() == Back(0)
    assert workers.pids == {0: 4711}


def test_worker_that_says_nothing_is_ended_and_restarted(results):
    workers = workers_of(1)
    workers.start(0, TASK, [])
    died = workers.wait()
    assert isinstance(died, Died) and died.worker == 0
    assert died.why.startswith("said nothing")
    # And it must not need long for coming back either.
    with pytest.raises(EngineFailed, match=r"^worker 0 .*\brestarts than 1\b"):
        workers.wait()


def test_nothing_is_heard_of_an_abandoned_task(results):
    workers = workers_of(1)
    workers.start(0, TASK, [])
    workers.abandon(0)
    with pytest.raises(EngineFailed, match=r"worker must be running\b"):
        workers.wait()


def test_error_in_the_workload_ends_the_run(results):
    workers = workers_of(1)
    workers.start(0, TASK, [])
    results[0, "compute", 0] = ZeroDivisionError("in the loss")
    with pytest.raises(EngineFailed, match=r"^worker 0 .*, got: in the loss$"):
        workers.wait()
