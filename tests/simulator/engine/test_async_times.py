"""Times of asynchronous workers, each in its times iteration."""

from dataclasses import replace

import numpy as np

from evenstep.simulator.clusters.noise import QUIET, Noise
from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.clusters.scheduled import Change, Scheduled
from evenstep.simulator.clusters.traces import UNDISTURBED, Trace, Traces
from evenstep.simulator.engine.async_times import AsyncTimes
from evenstep.simulator.engine.experiment import Experiment
from tests.simulator.engine.test_staleness import cluster_of


def test_each_worker_has_the_time_of_its_own_iteration():
    cluster = make_scenario("G", num_workers=4, iterations=20, seed=1)
    sizes = np.array([50, 40, 30, 8])
    times = AsyncTimes(cluster, sizes)
    for iteration, worker in [(0, 0), (7, 0), (0, 3), (0, 1), (7, 2), (0, 2)]:
        expected = cluster.times(sizes, cluster.conditions(iteration, now=0.0))[worker]
        assert times.time(worker, iteration, now=99.0) == expected


def test_times_that_all_workers_have_read_are_dropped():
    times = AsyncTimes(make_scenario("G", num_workers=4, iterations=20), np.full(4, 32))
    for worker in range(4):
        times.time(worker, 0, now=0.0)
    times.time(0, 1, now=0.0)
    assert list(times._cached) == list(times._num_reads) == [1]


def test_change_meets_each_worker_in_its_own_iteration():
    cluster = cluster_of(1.0, 4.0)
    slower = Change(2, np.array([0, 1]), slowdown=3.0)
    environment = Scheduled(np.zeros(2), Noise.of([QUIET] * 2, seed=0), [slower])
    run = Experiment("asp").start(replace(cluster, environment=environment))
    # Worker 0 arrives at 1, 2, 5 and 8 s, worker 1 at 4, 8 and 20 s.
    assert [progress.time for progress in run.advance(updates=3)] == [2.0, 5.0, 8.0]


def test_trace_over_seconds_is_met_at_the_time_of_the_start():
    busy = Trace(np.array([0.0, 2.5]), np.array([1.0, 0.5]), np.array([1.0, 1.0]), unit="second")
    environment = Scheduled(
        np.zeros(2), Noise.of([QUIET] * 2, seed=0), traces=Traces.of([busy, UNDISTURBED])
    )
    cluster = replace(cluster_of(1.0, 4.0), environment=environment)
    assert environment.follows_clock
    run = Experiment("asp").start(cluster)
    # Worker 0 starts at 0, 1, 2 and, from then on twice as slow, at 3 and 5 s.
    assert [progress.time for progress in run.advance(updates=3)] == [2.0, 4.0, 7.0]


def test_noise_comes_out_the_same_however_many_iterations_were_asked_for():
    noise = make_scenario("G", seed=3).environment.noise  # type: ignore[attr-defined]
    first = noise.factors(5).tolist()
    for iteration in range(5000):
        noise.factors(iteration)
    assert noise.factors(5).tolist() == first
