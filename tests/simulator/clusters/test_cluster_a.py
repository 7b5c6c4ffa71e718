"""Cluster-A: its curves have the shapes of the paper's Fig. 4."""

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.cluster_a import MODELS, WORKERS, ClusterA, read_device
from evenstep.simulator.clusters.curves import Curves
from evenstep.simulator.clusters.tables import read_table


def seconds(model, kind, *sizes):
    curve = Curves.of([read_device(model, kind).curve] * len(sizes))
    return curve.times_at(np.array(sizes))


def test_sixteen_workers_are_four_of_each_kind():
    assert ClusterA().make().workers == [
        f"{kind}-{i}" for kind in ("V100", "M60", "K80", "K520") for i in range(4)
    ]


def test_the_variants_are_one_of_each_kind_and_all_without_the_v100s():
    assert ClusterA(workers=4).make().workers == ["V100", "M60", "K80", "K520"]
    assert ClusterA(workers=12).make().workers == [
        f"{kind}-{i}" for kind in ("M60", "K80", "K520") for i in range(4)
    ]


@pytest.mark.parametrize("model", MODELS)
def test_the_smallest_batch_pays_the_launch_overhead(model):
    for kind in WORKERS[4]:
        empty, one, sixteen = seconds(model, kind, 0, 1, 16)
        assert 0 < empty < one < sixteen


def test_a_large_model_has_a_larger_launch_overhead():
    for kind in WORKERS[4]:
        assert seconds("inception_v3", kind, 0) > 2 * seconds("cifarnet", kind, 0)


def test_the_v100_is_not_saturated_by_small_batches_of_a_small_net():
    # Eight times the samples: the V100 takes 1.3 times as long, the K80 2.5 times.
    small, large = seconds("cifarnet", "V100", 16, 128)
    assert large < 1.5 * small
    small, large = seconds("cifarnet", "K80", 16, 128)
    assert large > 2 * small


def test_curves_never_fall():
    for model in MODELS:
        for kind in WORKERS[4]:
            assert (np.diff(seconds(model, kind, *range(300))) >= 0).all()


def test_memory_limits_are_the_largest_sizes_of_the_table():
    assert ClusterA(4).make().cap.tolist() == [128, 64, 128, 32]
    assert ClusterA(4, "cifarnet").make().cap.tolist() == [256] * 4


def test_the_table_says_what_was_measured_and_what_was_not():
    rows = read_table("cluster_a")
    kinds = {(row["gpu"], row["kind"]) for row in rows if row["batch_size"] != "0"}
    assert kinds == {
        ("V100", "measured"), ("M60", "measured"), ("K80", "measured"), ("K520", "derived"),
    }  # fmt: skip
    starts = {row["kind"] for row in rows if row["batch_size"] == "0"}
    assert starts == {"extrapolated"}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("workers", WORKERS)
def test_balancing_beats_equal_batches(workers, model):
    cluster = ClusterA(workers, model).make(noisy=False)
    at = cluster.conditions(0, now=0.0)
    best = cluster.optimum(at)
    assert best.sum() == cluster.total
    even = np.full(workers, cluster.total // workers)
    assert cluster.expected_times(best, at).max() < 0.6 * cluster.expected_times(even, at).max()


def test_degraded_communication_takes_four_times_as_long_on_the_m60s_only():
    cluster = ClusterA(4, degrade_at=150).make(noisy=False)
    before, after = (cluster.conditions(k, now=0.0).communication for k in (149, 150))
    # 23.8 million parameters of 4 bytes, there and back, at 10 Gbps.
    np.testing.assert_allclose(before, 0.1524, rtol=1e-3)
    np.testing.assert_allclose(after / before, [1, 4, 1, 1])
    assert cluster.changes_at == 150


def test_the_name_contains_the_measured_model():
    assert [ClusterA(model=model).make().name for model in MODELS] == [
        "Cluster-A, inception_v3 (times of InceptionV3 at 256 px)",
        "Cluster-A, resnet32 (times of ResNet18 at 32 px)",
        "Cluster-A, cifarnet (times of CIFAR10_CNN at 32 px)",
    ]


def test_seeds_and_noise():
    first, again, other = (ClusterA().make(seed=s).conditions(3, 0.0).noise for s in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    assert (ClusterA().make(noisy=False).conditions(3, 0.0).noise == 1).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 5}, "workers of Cluster-A must be one of 4, 12, 16, got 5"),
        (
            {"model": "vgg"},
            "model of Cluster-A must be one of inception_v3, resnet32, cifarnet, got 'vgg'",
        ),
        ({"degrade_at": 1.5}, "degrade_at of Cluster-A must be an integer, got 1.5"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(InvalidSetting) as caught:
        ClusterA(**settings)
    assert str(caught.value) == message
