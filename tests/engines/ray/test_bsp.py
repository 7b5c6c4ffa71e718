"""The BSP kinds on Ray: the same training as in virtual time, and as each other."""

import numpy as np
import pytest

from tests.engines.ray.training import CLUSTER, EXACT, MOMENTUM, difference, experiment, trained

pytestmark = [pytest.mark.timeout(150), pytest.mark.usefixtures("local_ray")]


def virtual(*what, updates=6, **how):
    run = experiment(*what, **how).start(CLUSTER, EXACT)
    for _ in run.advance(updates):
        pass
    return run.parameters


def test_bsp_and_balanced_bsp_give_the_parameters_of_virtual_time():
    expected = virtual(optimizer=MOMENTUM)
    plain, parameters = trained(optimizer=MOMENTUM, num_shards=2)
    assert difference(parameters, expected) < 1e-10
    balanced, parameters = trained("bsp", "proportional", optimizer=MOMENTUM, num_shards=2)
    assert difference(parameters, expected) < 1e-10
    assert plain.clock == "real"
    assert plain.num_samples == balanced.num_samples == 6 * CLUSTER.total
    assert np.all(np.diff([0.0, *plain.times]) > 0)
    assert plain.staleness == {0: 18}
    assert plain.faults == []
