"""FlexRR within an iteration: samples move, and the total stays."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.core import UNLIMITED
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.curves import Curves, linear
from evenstep.simulator.clusters.noise import QUIET, Noise
from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.clusters.scheduled import Scheduled
from evenstep.simulator.engine.flexrr_iteration import run_iteration, sequential
from evenstep.simulator.schemes import FlexRR


def cluster_of(*speeds, communication=0.0):
    n = len(speeds)
    return Cluster(
        name="tiny",
        workers=[f"w{i}" for i in range(n)],
        curves=Curves.of([linear(speed) for speed in speeds]),
        cap=np.full(n, UNLIMITED),
        environment=Scheduled(np.full(n, communication), Noise.of([QUIET] * n, seed=0)),
        total=100 * n,
        iterations=4,
    )


def shared(cluster, **settings):
    scheme = FlexRR(cluster.num_workers, **{"monitoring": 0.0, "moving": 0.0, **settings})
    sizes = np.full(cluster.num_workers, cluster.total // cluster.num_workers)
    return run_iteration(scheme, cluster, sizes, cluster.conditions(0, now=0.0))


def test_two_workers_end_together_up_to_a_sample():
    # 200 samples at 10 + 30 per second: 5 s; without help the slow one takes 10 s.
    sizes, times = shared(cluster_of(10.0, 30.0))
    assert sizes.sum() == 200
    assert abs(sizes - [50, 150]).max() <= 2
    np.testing.assert_allclose(times, [5.0, 5.0], atol=0.2)
    # The fast one now and then waits for the next check.
    assert (times >= sizes / [10, 30] - 1e-9).all()


def test_equal_workers_are_left_alone():
    sizes, times = shared(cluster_of(10.0, 10.0, 10.0), moving=0.5)
    assert sizes.tolist() == [100, 100, 100]
    np.testing.assert_allclose(times, 10.0)


def test_monitoring_and_moving_cost_time():
    cluster = cluster_of(10.0, 30.0)
    free = shared(cluster)[1].max()
    assert shared(cluster, monitoring=0.1)[1].max() == pytest.approx(1.1 * free, rel=0.01)
    # Each loses 10 % of 100 samples of its own.
    assert shared(cluster, moving=0.1)[1].max() == pytest.approx(1.1 * free, rel=0.02)


def test_communication_is_not_shared():
    cluster = cluster_of(10.0, 30.0)
    _, without = shared(cluster)
    _, times = shared(cluster_of(10.0, 30.0, communication=0.5))
    np.testing.assert_allclose(times, without + 0.5)


def test_communication_that_is_overlapped_counts_only_where_it_is_longer():
    _, without = shared(cluster_of(10.0, 30.0))
    for communication in (0.5, 8.0):
        cluster = cluster_of(10.0, 30.0, communication=communication)
        _, times = shared(replace(cluster, overlapped=True))
        np.testing.assert_allclose(times, np.maximum(without, communication))


@pytest.mark.parametrize("scenario", ["G", "P", "M", "identical"])
@pytest.mark.parametrize("seed", range(3))
def test_total_is_kept_and_no_run_beats_the_sum_of_speeds(scenario, seed):
    cluster = make_scenario(scenario, num_workers=8, iterations=5, seed=seed)
    at = cluster.conditions(0, now=0.0)
    sizes = np.full(8, cluster.total // 8)
    scheme = FlexRR(8, monitoring=0.0, moving=0.0)
    final, times = run_iteration(scheme, cluster, sizes, at)
    assert final.sum() == cluster.total
    assert (final >= 0).all()
    own = sequential(cluster).times(sizes, at) - at.communication * at.noise
    ideal = cluster.total / (sizes / own).sum()
    assert (times - at.communication * at.noise).max() >= ideal * (1 - 1e-9)
    assert (times - at.communication * at.noise).max() <= 1.1 * ideal + own.max() / sizes[0]
