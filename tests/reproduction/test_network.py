"""The network: communication times from bandwidths, with computing or after it."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.scenarios import make_scenario
from reproduction.network import BandwidthChange, Network, connect

CLUSTER = make_scenario("G", noisy=False)
SIZES = np.array([89, 21, 12, 6])
MOVED = BandwidthChange(10, np.array([1, 2]), bandwidth=1e6)
NETWORK = Network(np.array([8e6, 4e6, 2e6, np.inf]), model_bytes=2e6, changes=[MOVED])


def test_time_is_that_of_a_pull_and_a_push_and_changes_with_the_bandwidth():
    assert NETWORK.times(9).tolist() == [0.5, 1.0, 2.0, 0.0]
    assert NETWORK.times(10).tolist() == [0.5, 4.0, 4.0, 0.0]


def test_last_change_in_time_holds_whatever_their_order():
    later = BandwidthChange(20, np.array([1]), bandwidth=2e6)
    network = replace(NETWORK, changes=[later, MOVED])
    assert [network.times(k)[1] for k in (9, 10, 20)] == [1.0, 4.0, 2.0]


@pytest.mark.parametrize("iteration", [0, 10])
def test_communication_is_added_to_computing_or_hidden_behind_it(iteration):
    computation = CLUSTER.curves.times_at(SIZES)
    times = {}
    for overlapped in (False, True):
        cluster = connect(CLUSTER, NETWORK, overlapped)
        times[overlapped] = cluster.times(SIZES, cluster.conditions(iteration, now=0.0))
    communication = NETWORK.times(iteration)
    np.testing.assert_allclose(times[False], communication + computation)
    np.testing.assert_allclose(times[True], np.maximum(communication, computation))


@pytest.mark.parametrize("overlapped", [False, True])
def test_optimum_knows_whether_communication_is_hidden(overlapped):
    network = replace(NETWORK, bandwidth=np.array([4e6, 8e6, 1e6, 2e6]))
    cluster = replace(connect(CLUSTER, network, overlapped), total=12)
    at = cluster.conditions(0, now=0.0)
    best = min(
        cluster.expected_times(np.array(sizes), at).max()
        for sizes in product(range(1, 12), repeat=4)
        if sum(sizes) == 12
    )
    assert cluster.expected_times(cluster.optimum(at), at).max() == pytest.approx(best)


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidSetting, match="bandwidth must be > 0"):
        Network(np.array([1.0, 0.0]), 10)
    with pytest.raises(InvalidSetting, match="model_bytes must be finite"):
        Network(np.ones(2), -1)
    with pytest.raises(InvalidSetting, match="bandwidth must be > 0"):
        BandwidthChange(0, np.array([0]), bandwidth=0.0)
    with pytest.raises(InvalidSetting, match="each of 4 workers"):
        connect(CLUSTER, Network(np.ones(3), 10))
