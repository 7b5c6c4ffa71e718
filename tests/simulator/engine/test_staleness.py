"""The staleness of gradients under each scheme, worked out by hand."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest

from evenstep.core import UNLIMITED
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.curves import Curves
from evenstep.simulator.clusters.noise import QUIET, Noise
from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.clusters.scheduled import Scheduled
from evenstep.simulator.engine.run import Run
from evenstep.simulator.engine.virtual import VirtualEngine
from evenstep.simulator.schemes import make_scheme


class Even:
    """A planner that gives all workers the same size."""

    def __init__(self, cluster):
        self._sizes = np.full(cluster.num_workers, cluster.total // cluster.num_workers)

    def sizes(self, reports, ahead):
        return self._sizes


def cluster_of(*seconds):
    """Make a cluster whose workers take these seconds for an even batch."""
    n = len(seconds)
    return Cluster(
        name="steady",
        workers=[f"w{i}" for i in range(n)],
        curves=Curves.of([((0.0, s), (1e6, s), (2e6, 2 * s)) for s in seconds]),
        cap=np.full(n, UNLIMITED),
        environment=Scheduled(np.zeros(n), Noise.of([QUIET] * n, seed=0)),
        total=8 * n,
        iterations=10,
    )


def engine_of(scheme, *seconds):
    cluster = cluster_of(*seconds)
    return VirtualEngine(cluster, Even(cluster), lambda n: make_scheme(scheme, n))


def seen(scheme, *seconds, count):
    arrivals = islice(engine_of(scheme, *seconds).arrivals(), count)
    return [(a.worker, a.iteration, a.start, a.end, a.staleness) for a in arrivals]


def test_staleness_of_asp_by_hand():
    assert seen("asp", 1.0, 2.5, count=7) == [
        (0, 0, 0.0, 1.0, 0),
        (0, 1, 1.0, 2.0, 0),
        (1, 0, 0.0, 2.5, 2),
        (0, 2, 2.0, 3.0, 1),
        (0, 3, 3.0, 4.0, 0),
        (1, 1, 2.5, 5.0, 2),
        (0, 4, 4.0, 5.0, 1),
    ]


def test_distribution_of_staleness_under_asp():
    """Worker 0 arrives four times while worker 1 computes, and worker 1 once in every four."""
    run = Run(engine_of("asp", 1.0, 4.25))
    for _ in run.advance(updates=10):
        pass
    # 20 gradients in 17 s: 16 of worker 0 and, at 4.25, 8.5, 12.75 and 17 s, 4 of worker 1, which
    # pulled before 4 of the others; worker 0 meets one of them at 5, 9 and 13 s.
    assert run.staleness == Counter({0: 13, 4: 4, 1: 3})


def test_equal_workers_are_all_n_minus_one_updates_behind_under_asp():
    run = Run(engine_of("asp", 1.0, 1.0, 1.0))
    for _ in run.advance(updates=5):
        pass
    assert run.staleness == Counter({2: 13, 0: 1, 1: 1})


@pytest.mark.parametrize("scheme", ["bsp", "bsp:backups=1", "flexrr"])
def test_gradients_of_bsp_kinds_are_never_stale(scheme):
    run = Run(engine_of(scheme, 1.0, 2.5, 1.5))
    for _ in run.advance(updates=5):
        pass
    assert set(run.staleness) == {0}


def test_ssp_holds_the_fast_worker_until_the_slow_one_arrives():
    assert seen("ssp:bound=2", 1.0, 10.0, count=7) == [
        (0, 0, 0.0, 1.0, 0),
        (0, 1, 1.0, 2.0, 0),
        (1, 0, 0.0, 10.0, 2),
        (0, 2, 10.0, 11.0, 0),
        (1, 1, 10.0, 20.0, 1),
        (0, 3, 20.0, 21.0, 0),
        (1, 2, 20.0, 30.0, 1),
    ]


def test_backups_are_dropped_in_every_iteration_and_start_again():
    engine = engine_of("bsp:backups=2", 4.0, 1.0, 3.0, 2.0)
    arrivals = list(islice(engine.arrivals(), 6))
    assert [(a.worker, a.iteration, a.start, a.end) for a in arrivals] == [
        (1, 0, 0.0, 1.0),
        (3, 0, 0.0, 2.0),
        (1, 1, 2.0, 3.0),
        (3, 1, 2.0, 4.0),
        (1, 2, 4.0, 5.0),
        (3, 2, 4.0, 6.0),
    ]
    assert engine.num_dropped == 3 * 2


def test_worker_that_was_dropped_reports_no_time():
    reported = []

    class Listening(Even):
        def sizes(self, reports, ahead):
            reports.check()
            reported.append(reports)
            return super().sizes(reports, ahead)

    cluster = cluster_of(4.0, 1.0)
    planner = Listening(cluster)
    list(VirtualEngine(cluster, planner, lambda n: make_scheme("bsp:backups=1", n)).run(2))
    assert reported[1].batch_sizes.tolist() == [0, 8]
    np.testing.assert_array_equal(reported[1].times, [np.nan, 1.0])


def test_time_per_gradient_counts_those_that_were_used():
    times = {}
    for scheme in ("bsp", "bsp:backups=1", "asp", "ssp:bound=1"):
        run = Run(engine_of(scheme, 1.0, 2.0, 6.0))
        for _ in run.advance(updates=12):
            pass
        times[scheme] = run.per_update_time()
    # ASP: 36 gradients at 1 + 1/2 + 1/6 per second take 21.6 s; the last one comes at 22 s.
    expected = {"bsp": 2.0, "bsp:backups=1": 1.0, "ssp:bound=1": 2.0, "asp": 22 / 36}
    assert times == pytest.approx(expected, abs=0.03)


def test_worker_may_get_further_than_the_run_is_long():
    """The conditions of a scenario are drawn for a number of iterations, and then repeat."""
    cluster = make_scenario("P", num_workers=3, iterations=5, seed=0)
    again = cluster.conditions(7, now=0.0)
    np.testing.assert_array_equal(again.noise, cluster.conditions(2, now=0.0).noise)
    run = Run(VirtualEngine(cluster, Even(cluster), lambda n: make_scheme("asp", n)))
    assert sum(1 for _ in run.advance(updates=20)) == 20
