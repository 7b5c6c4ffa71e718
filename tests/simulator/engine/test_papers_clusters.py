"""The paper's workloads on the paper's clusters, in virtual time with real gradients."""

from dataclasses import replace

import pytest

from evenstep.simulator.clusters.registry import make_cluster
from evenstep.simulator.workloads.registry import make_workload
from tests.simulator.engine.test_learner import difference, train

SVM = make_workload("svm:dtype=float64")


@pytest.mark.parametrize(
    ("cluster", "policy"),
    [("A:4", "equal_finish"), ("B", "proportional"), ("B:tasks", "proportional")],
)
def test_balancing_the_svm_is_faster_and_trains_the_same(cluster, policy):
    made = replace(make_cluster(cluster, seed=1), total=256)
    plain, expected = train(workload=SVM, cluster=made)
    balanced, parameters = train(workload=SVM, cluster=made, policy=policy)
    assert balanced.times[-1] < 0.8 * plain.times[-1]
    assert difference(parameters, expected) < 1e-10


def test_a_net_without_batch_norm_trains_the_same_on_unequal_batches():
    net = make_workload("inception_v3:norm=group,dtype=float64")
    made = replace(make_cluster("A:4", model="inception_v3"), total=16)
    _, expected = train(workload=net, cluster=made, updates=3)
    _, parameters = train(workload=net, cluster=made, updates=3, policy="equal_finish")
    assert difference(parameters, expected) < 1e-10


def test_backups_of_cluster_b_take_part():
    made = make_cluster("B:usage,backups=2")
    run, _ = train("bsp:backups=2", workload=SVM, cluster=made, updates=3)
    plain, _ = train(workload=SVM, cluster=made, updates=3)
    assert run.num_counted == 32
    assert run.times[-1] < plain.times[-1]
