"""Clusters in short form: valid and invalid ones."""

from pathlib import Path

import pytest

from evenstep.errors import ClusterFileError, InvalidSetting
from evenstep.simulator.clusters.registry import SUMMARIES, make_cluster

EXAMPLES = Path(__file__).parents[3] / "examples" / "clusters"


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_name_makes_a_cluster(name):
    cluster = make_cluster(name, iterations=7, seed=3)
    assert cluster.iterations == 7
    assert len(cluster.bandwidth) == cluster.num_workers
    assert cluster.optimum(cluster.conditions(0, now=0.0)).sum() == cluster.total


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_cluster_file_makes_a_cluster(file):
    assert make_cluster(str(file), iterations=5).iterations == 5


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("A:4", "A:workers=4"),
        ("A:12,model=cifarnet", "A:workers=12,model=cifarnet"),
        ("B:tasks", "B:trace=tasks"),
        ("B:usage,backups=1", "B:backups=1"),
    ],
)
def test_the_first_setting_needs_no_name(spec, same):
    one, other = make_cluster(spec), make_cluster(same)
    assert (one.name, one.workers) == (other.name, other.workers)


def test_a_number_of_workers_may_be_given_as_an_argument():
    assert make_cluster("A", num_workers=12).num_workers == 12
    assert make_cluster("A:4", num_workers=4).num_workers == 4


def test_cluster_a_has_the_times_of_the_trained_model_if_it_knows_them():
    assert make_cluster("A", model="resnet32").name.startswith("Cluster-A, resnet32")
    assert make_cluster("A:model=cifarnet", model="resnet32").name.startswith("Cluster-A, cifarnet")
    assert make_cluster("A", model="svm").name.startswith("Cluster-A, inception_v3")
    assert make_cluster("B", model="resnet32").num_workers == 32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"spec": "C"},
            "cluster must be one of A, B, G, P, S, M, identical, or a cluster file, got 'C'",
        ),
        (
            {"spec": "G:4"},
            "cluster must be one of A, B, G, P, S, M, identical, or a cluster file, got 'G:4'",
        ),
        ({"spec": "A:5"}, "workers of Cluster-A must be one of 4, 12, 16, got 5"),
        (
            {"spec": "A:4", "num_workers": 12},
            "the number of workers must be given once, got 4 and 12",
        ),
        ({"spec": "B", "num_workers": 8}, "B has its own number of workers, got 8"),
        ({"spec": "A", "iterations": 0}, "the number of iterations must be >= 1, got 0"),
        (
            {"spec": "A:modle=resnet32"},
            "a setting of 'A' must be one of workers, model, degrade_at, got 'modle' "
            "(did you mean 'model'?)",
        ),
        (
            {"spec": str(EXAMPLES / "mixed_gpus.toml"), "num_workers": 2},
            f"a number of workers goes with a scenario; {EXAMPLES / 'mixed_gpus.toml'} has its own "
            "workers",
        ),
    ],
)
def test_invalid_short_forms_are_refused(settings, message):
    with pytest.raises(InvalidSetting) as caught:
        make_cluster(**settings)
    assert str(caught.value) == message


def test_a_missing_file_is_said_to_be_missing():
    with pytest.raises(ClusterFileError, match=r"gone\.toml: .*: No such file"):
        make_cluster("gone.toml")
