"""The coordinator of the Ray engine, with fake workers and shards; needs no Ray."""

from itertools import islice

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.simulator.engine.experiment import Experiment
from evenstep.simulator.engine.samples import SharedOrder
from evenstep.simulator.ray_engine.clock import Clock
from evenstep.simulator.ray_engine.engine import RayEngine
from evenstep.simulator.ray_engine.faults import Faults
from evenstep.simulator.ray_engine.ray_settings import RaySettings
from evenstep.simulator.ray_engine.start import ray_run
from evenstep.simulator.ray_engine.worker_actor import WorkerDone
from evenstep.simulator.ray_engine.workers import Back, Died, Finished
from evenstep.simulator.schemes import make_scheme
from evenstep.simulator.workloads.digits import softmax_digits
from tests.simulator.engine.test_staleness import cluster_of


class FakeWorkers:
    """Workers with given events; records the calls."""

    def __init__(self, events):
        self._events = iter(events)
        self.handles = ["zero", "one", "two"]
        self.calls = []

    def start(self, worker, task, shards):
        self.calls.append(("start", worker, task.iteration, task.ticket))

    def abandon(self, worker):
        self.calls.append(("abandon", worker))

    def wait(self):
        return next(self._events)


class FakeServer:
    """A server that records the calls."""

    def __init__(self):
        self.handles = []
        self.version = 0
        self.counted = []
        self.num_checks = 0

    def count(self, pushed):
        self.counted.append((pushed.worker, pushed.weight))

    def update(self):
        self.version += 1
        self.counted.append("update")

    def replace_dead(self):
        self.num_checks += 1


class FixedSizes:
    def __init__(self, *sizes):
        self._sizes = np.array(sizes)
        self.reports = []

    def sizes(self, reports, ahead):
        self.reports.append(reports)
        return self._sizes


def engine_of(scheme, sizes, *events):
    cluster = cluster_of(*[1.0] * len(sizes))
    workers, server, planner, clock = FakeWorkers(events), FakeServer(), FixedSizes(*sizes), Clock()
    engine = RayEngine(
        cluster,
        planner,
        make_scheme(scheme, len(sizes)),
        SharedOrder(1000, seed=0),
        workers,  # type: ignore[arg-type]
        server,  # type: ignore[arg-type]
        RaySettings(),
        clock,
        Faults(clock),
    )
    return engine, workers, server, planner


def done(worker, version=0, time=0.5):
    return Finished(worker, WorkerDone(version, time, cpu=0.25 * worker, memory=0.5))


def test_planner_gets_the_times_and_the_usage_that_workers_measured():
    events = [done(1, time=0.5), done(0, time=2.0), done(0, version=1)]
    engine, _, server, planner = engine_of("bsp", [8, 24], *events)
    arrivals = list(islice(engine.arrivals(), 3))
    assert [(a.worker, a.iteration, a.updated) for a in arrivals] == [
        (1, 0, False),
        (0, 0, True),
        (0, 1, False),
    ]
    # 2 x_i / X, and each is one of two.
    assert server.counted == [(1, 0.75), (0, 0.25), "update", (0, 0.25)]
    first, second = planner.reports
    assert np.isnan(first.times).all()
    assert second.times.tolist() == [2.0, 0.5]
    assert second.batch_sizes.tolist() == [8, 24]
    assert second.cpu.tolist() == [0.0, 0.25]


def test_dead_worker_does_its_task_again_and_the_others_wait():
    events = [done(0), Died(1, "died"), Back(1), done(1)]
    engine, workers, server, _ = engine_of("bsp", [8, 8], *events)
    arrivals = list(islice(engine.arrivals(), 2))
    assert [arrival.worker for arrival in arrivals] == [0, 1]
    assert workers.calls == [("start", 0, 0, 0), ("start", 1, 0, 1), ("start", 1, 0, 1)]
    (fault,) = engine.faults
    assert (fault.who, fault.iteration) == ("worker 1", 0)
    assert fault.what.split("; ") == ["died", "restarting, the others wait"]
    assert server.version == 1


def test_iteration_continues_without_a_dead_worker_if_there_are_backups():
    events = [done(0), Died(1, "died"), done(2), done(2, 1), Back(1), done(0, 1), done(1, 2)]
    engine, workers, server, _ = engine_of("bsp:backups=1", [8, 8, 8], *events)
    arrivals = list(islice(engine.arrivals(), 5))
    assert [(a.worker, a.iteration) for a in arrivals] == [(0, 0), (2, 0), (2, 1), (0, 1), (1, 2)]
    assert server.version == 2
    assert engine.num_dropped == 0
    starts = [call[1:3] for call in workers.calls]
    assert starts == [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (0, 2), (1, 2), (2, 2)]


def test_late_backup_is_abandoned_and_its_gradient_dropped():
    engine, workers, server, _ = engine_of("bsp:backups=1", [8, 8], done(1), done(0, version=1))
    list(islice(engine.arrivals(), 2))
    assert workers.calls[2:5] == [("abandon", 0), ("start", 0, 1, 2), ("start", 1, 1, 3)]
    assert engine.num_dropped == 2
    assert server.version == 2


def test_worker_that_cannot_reach_a_shard_starts_again_once_it_is_replaced():
    events = [Finished(0, WorkerDone(lost="a shard died")), done(0), done(0, version=1)]
    engine, workers, server, _ = engine_of("asp", [8], *events)
    list(islice(engine.arrivals(), 2))
    assert workers.calls == [("start", 0, 0, 0), ("start", 0, 0, 0), ("start", 0, 1, 1)]
    assert server.num_checks == 1
    assert engine.faults[0].what.split("; ") == ["a shard died", "starts again"]


def test_benched_worker_arrives_at_once_and_pushes_nothing():
    engine, workers, server, _ = engine_of("bsp", [0, 16], done(1))
    arrivals = list(islice(engine.arrivals(), 2))
    assert [(a.worker, a.batch_size, a.staleness) for a in arrivals] == [(0, 0, 0), (1, 16, 0)]
    assert workers.calls == [("start", 1, 0, 1)]
    assert server.counted == [(1, 1.0), "update"]


def test_staleness_counts_updates_between_pull_and_push():
    events = [done(0), done(0, version=1), done(1)]
    engine, *_ = engine_of("asp", [8, 8], *events)
    assert [a.staleness for a in islice(engine.arrivals(), 3)] == [0, 0, 2]


def test_clock_stops_between_arrivals():
    engine, *_ = engine_of("asp", [8], done(0), done(0))
    arrivals = engine.arrivals()
    next(arrivals)
    assert engine.now == engine.now > 0


def test_flexrr_is_refused():
    run = ray_run(Experiment("flexrr"), cluster_of(1.0, 1.0), softmax_digits())
    with pytest.raises(InvalidSetting, match=r"^scheme .*bsp, asp or ssp, got 'flexrr'"):
        run.__enter__()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": 0.0}, "scale must be finite and > 0, got 0.0"),
        ({"keep_every": 0}, "keep_every must be >= 1, got 0"),
        ({"restarts": -1}, "restarts must be >= 0, got -1"),
        ({"patience": float("inf")}, "patience must be finite and > 0, got inf"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(InvalidSetting, match=message):
        RaySettings(**settings)
