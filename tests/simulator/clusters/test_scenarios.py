"""The built-in scenarios: the paper's optimum, and their documented properties."""

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.scenarios import SCENARIOS, make_scenario


def optimum(cluster, iteration):
    return tuple(cluster.optimum(cluster.conditions(iteration, now=0.0)).tolist())


def test_gpu_optimum_is_the_papers_before_and_after_the_change():
    cluster = make_scenario("G", noisy=False)
    assert cluster.workers == ["V100", "M60", "K80", "K520"]
    assert cluster.changes_at == 150
    assert optimum(cluster, 149) == (89, 21, 12, 6)
    assert optimum(cluster, 150) == (100, 8, 13, 7)


def test_gpu_optimum_finishes_together():
    cluster = make_scenario("G", noisy=False)
    times = cluster.times(np.array([89, 21, 12, 6]), cluster.conditions(0, now=0.0))
    np.testing.assert_allclose(times, 1.25)


def test_gpu_optimum_of_eight_workers_is_that_of_four_twice():
    cluster = make_scenario("G", num_workers=8, noisy=False)
    assert optimum(cluster, 0) == (89, 89, 21, 21, 12, 12, 6, 6)


def test_gpus_of_one_kind_differ_in_larger_clusters():
    cluster = make_scenario("G", num_workers=16, noisy=False)
    times = cluster.times(np.full(16, 32), cluster.conditions(0, now=0.0))
    assert len(set(times.tolist())) == 16


def test_the_spread_of_the_devices_is_not_the_noise_of_an_iteration():
    # Both once came from one stream, at the iteration that equals the number of workers.
    cluster = make_scenario("G", num_workers=16)
    v100_spread = cluster.curves.slopes[:4, -1] / (0.5 / 57)
    noise = cluster.conditions(16, now=0.0).noise
    assert not np.isclose(v100_spread[:, None], noise).any()


def test_cpu_scenarios_have_the_workers_of_cluster_b():
    cluster = make_scenario("S", iterations=1)
    speeds = 1 / cluster.curves.slopes[:, 0]
    np.testing.assert_allclose(speeds, [60.0] * 17 + [90.0] * 10 + [64.0] * 2 + [115.0] * 2 + [31])
    assert (cluster.total, cluster.score_from, cluster.policy) == (4096, 500, "proportional")


def test_every_policy_of_a_run_has_the_same_noise():
    for name in SCENARIOS:
        first, again = (make_scenario(name, iterations=3, seed=5) for _ in range(2))
        for k in range(3):
            noise = first.conditions(k, now=0.0).noise, again.conditions(k, now=99.0).noise
            assert np.array_equal(*noise)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_different_with_another_seed_and_quiet_without_noise(name):
    one, two = (make_scenario(name, iterations=1, seed=s).conditions(0, 0.0).noise for s in (1, 2))
    assert not np.array_equal(one, two)
    quiet = make_scenario(name, iterations=1, noisy=False).conditions(0, now=0.0)
    assert np.all(quiet.noise == 1)


@pytest.mark.parametrize("name", SCENARIOS)
def test_worker_names_are_unique(name):
    workers = make_scenario(name, num_workers=64, iterations=1).workers
    assert len(set(workers)) == 64


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "X"}, "scenario must be one of G, P, S, M, identical, got 'X'"),
        (
            {"name": "G", "num_workers": 6},
            "scenario G has as many workers of each of 4 kinds: their number must be a multiple "
            "of 4, got 6",
        ),
        ({"name": "P", "num_workers": 0}, "the number of workers must be >= 1, got 0"),
        ({"name": "P", "iterations": 0}, "the number of iterations must be >= 1, got 0"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(InvalidSetting) as caught:
        make_scenario(**settings)
    assert str(caught.value) == message
