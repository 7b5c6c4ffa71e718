"""The default policy: one rule, and every way to start a training follows it."""

import numpy as np
import pytest

from evenstep.manager.job_settings import JobSettings as JobSettings
from evenstep.policies import default_policy
from evenstep.predictors import BestOf
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.file.load import load_cluster
from evenstep.simulator.engine.simulation import Setup
from evenstep.training.collective import Alone
from evenstep.training.loop_setup import make_loop
from evenstep.training.settings import choose_policy, choose_predictor


@pytest.mark.parametrize("device", [None, "cpu", "cuda", "gpu", "tpu"])
@pytest.mark.parametrize("reads_usage", [False, True])
def test_cautious_needs_cpus_and_usage(device, reads_usage):
    expected = "cautious" if device == "cpu" and reads_usage else "equal_finish"
    assert default_policy(device, reads_usage) == expected


# The loops of tensorflow, jax and mxnet name their device, and nothing else of it.
@pytest.mark.parametrize("framework", ["tensorflow", "jax", "mxnet"])
@pytest.mark.parametrize(("device", "expected"), [("cpu", "Cautious"), ("gpu", "EqualFinish")])
def test_loops_follow_the_rule(framework, device, expected):
    loop = make_loop(Alone(), 8, framework=framework, device=device, summary=False)
    loop.close()
    assert type(loop.policy).__name__ == expected


def test_predictor_of_the_default_policy_is_best_of():
    policy = choose_policy("balanced", None, None, "cpu")
    assert isinstance(choose_predictor(policy, None), BestOf)
    assert choose_predictor(choose_policy("balanced", None, None, "cuda"), None) is None
    assert JobSettings(2, 8).predictor == "best_of"


def test_job_of_which_nobody_knows_the_devices_has_equal_finish():
    assert JobSettings(2, 8).policy == default_policy() == "equal_finish"


def test_cluster_that_names_no_policy_has_the_one_of_unknown_devices(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text('samples_per_worker = 4\n[[workers]]\nname = "w"\ncount = 2\nspeed = 90.0\n')
    cluster = load_cluster(path)
    assert isinstance(cluster, Cluster)
    assert Setup.of(cluster, None, None, delay=0) == Setup(default_policy())
    assert np.array_equal(Setup.of(cluster, None, None, 0).balancer(cluster).plan.sizes, [4, 4])
