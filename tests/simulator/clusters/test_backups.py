"""Backups: additional workers that do not affect the others."""

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.backups import default_backups, make_with_backups
from evenstep.simulator.clusters.registry import make_cluster

PARTS = ("slowdown", "communication", "noise", "cpu", "memory")


@pytest.mark.parametrize("spec", ["A:4", "G", "P", "identical"])
def test_workers_are_as_without_backups(spec):
    alone = make_cluster(spec, iterations=20, seed=3)
    n = alone.num_workers
    cluster = make_with_backups(spec, backups=2, iterations=20, seed=3)
    assert list(cluster.workers) == [*alone.workers, "backup-0", "backup-1"]
    assert cluster.total * n == alone.total * (n + 2)
    sizes = np.full(n + 2, 7)
    np.testing.assert_array_equal(
        cluster.curves.times_at(sizes)[:n], alone.curves.times_at(sizes[:n])
    )
    for iteration in (0, 13):
        at, expected = (c.conditions(iteration, now=4.0) for c in (cluster, alone))
        for part in PARTS:
            np.testing.assert_array_equal(getattr(at, part)[:n], getattr(expected, part))


def test_backup_is_like_a_worker_with_noise_of_its_own():
    cluster = make_with_backups("A:4", like="K80")
    times = cluster.curves.times_at(np.full(5, 32))
    assert (times[4], cluster.cap[4]) == (times[2], cluster.cap[2])
    noise = np.array([cluster.conditions(k, now=0.0).noise for k in range(50)])
    assert not (noise[:, 4] == noise[:, 2]).any()
    assert abs(np.corrcoef(noise[:, 4], noise[:, 2])[0, 1]) < 0.5


@pytest.mark.parametrize(("spec", "like"), [("A:4", "M60"), ("P", "c5.2xlarge-0")])
def test_default_backup_is_like_the_worker_at_the_upper_quartile(spec, like):
    usual, given = (
        make_with_backups(spec, 1, iterations=9),
        make_with_backups(spec, 1, like, None, 9),
    )
    sizes = np.full(usual.num_workers, 16)
    np.testing.assert_array_equal(usual.curves.times_at(sizes), given.curves.times_at(sizes))


@pytest.mark.parametrize(("spec", "trace"), [("B", "usage"), ("B:tasks", "tasks")])
def test_cluster_b_has_its_own(spec, trace):
    cluster = make_with_backups(spec)
    assert (cluster.name, cluster.num_workers) == (f"Cluster-B, {trace}", 34)
    assert cluster.total == 34 * 128


def test_number_follows_the_workers():
    assert [default_backups(n) for n in (1, 4, 16, 32, 96)] == [1, 1, 1, 2, 6]


MISTAKES = {
    "none": (("A:4", 0), "backups must be >= 1, got 0"),
    "unknown worker": (
        ("A:4", 1, "P100"),
        "backups must be like one of the workers (V100, M60, K80, K520), got 'P100'",
    ),
    "like, of Cluster-B": (
        ("B", 2, "m4.xlarge"),
        "like must not be given for Cluster-B, got 'm4.xlarge'",
    ),
    "twice of Cluster-B": (
        ("B:tasks,backups=1", 2),
        "settings of 'B' must be given once each, got 'backups' twice",
    ),
    "too many of Cluster-B": (("B", 3), "backups of Cluster-B must be 0 to 2, got 3"),
}


@pytest.mark.parametrize(("args", "message"), MISTAKES.values(), ids=MISTAKES)
def test_invalid_settings_are_refused(args, message):
    with pytest.raises(InvalidSetting) as error:
        make_with_backups(*args)
    assert str(error.value) == message
