"""BSP and LB-BSP on Ray: the same training as in virtual time."""

import numpy as np
import pytest

from evenstep.simulator.ray_engine.ray_settings import RaySettings
from tests.simulator.engine.ray.training import CLUSTER, MOMENTUM, difference, trained, virtual

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("local_ray")]


def test_bsp_gives_the_parameters_of_virtual_time():
    run, parameters = trained(optimizer=MOMENTUM, num_shards=2)
    assert difference(parameters, virtual(optimizer=MOMENTUM)) < 1e-10
    assert run.clock == "real"
    assert run.num_samples == 6 * CLUSTER.total
    assert run.staleness == {0: 6 * CLUSTER.num_workers}
    assert np.all(np.diff([0.0, *run.times]) > 0)
    assert [point.updates for point in run.points] == [0, 6]
    assert run.faults == []


@pytest.mark.parametrize("weighted", [True, False])
def test_balanced_bsp_gives_them_too_only_if_gradients_are_weighted(weighted):
    """Worker 0 takes four times as long as worker 1, which the balancer learns."""
    sizes = []

    def watch(engine, worker, iteration):
        if worker == 0:
            sizes.append(engine.sizes.tolist())

    settings = RaySettings(scale=0.05, start_patience=150.0)
    run, parameters = trained(
        "bsp", "proportional", settings=settings, weighted=weighted, watch=watch
    )
    assert run.clock == "emulated"
    assert sizes[0] == [16, 16]
    assert sizes[-1][0] < 10 and sum(sizes[-1]) == CLUSTER.total
    assert (difference(parameters, virtual()) < 1e-10) == weighted
    # 1.6 s of the cluster for 16 samples, at 0.1 s each.
    assert run.times[0] >= 1.6
    assert run.times[-1] - run.times[-2] >= 0.1 * sizes[-1][0]
