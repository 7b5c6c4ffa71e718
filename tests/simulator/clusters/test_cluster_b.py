"""Cluster-B: the paper's instances, and the two hours of the trace that can drive them."""

from collections import Counter

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.cluster_b import TRACES, ClusterB, usage_trace, worker_tasks
from evenstep.simulator.clusters.tables import read_table


def test_workers_are_those_of_the_papers_table_and_two_backups():
    rows = read_table("cluster_b_workers")
    assert Counter(row["instance"] for row in rows[:32]) == {
        "m4.2xlarge": 17, "c5.2xlarge": 10, "r4.2xlarge": 2, "m4.4xlarge": 2, "m4.xlarge": 1,
    }  # fmt: skip
    assert [row["instance"] for row in rows[32:]] == ["c5.2xlarge"] * 2
    assert len({row["machine_id"] for row in rows}) == 34


def test_backups_come_after_the_others():
    without, with_two = ClusterB().make(), ClusterB(backups=2).make()
    assert with_two.workers == [*without.workers, "backup-0", "backup-1"]
    assert (without.total, with_two.total) == (32 * 128, 34 * 128)


def test_usage_levels_last_five_minutes_and_the_hour_repeats():
    cluster = ClusterB().make(noisy=False)
    first, still, later = (cluster.conditions(0, now).cpu for now in (0.0, 299.0, 300.0))
    assert (first == still).all()
    assert (first != later).any()
    assert (cluster.conditions(9, 3600.0).cpu == first).all()


def test_usage_slows_workers_down_by_what_is_left():
    cluster = ClusterB().make(noisy=False)
    at = cluster.conditions(0, now=0.0)
    np.testing.assert_allclose(at.slowdown, 1 / at.cpu)
    # As the trace's description says: 2.7 to 6.8 times as much is left on the freest machine.
    for slot in range(12):
        left = cluster.conditions(0, now=300.0 * slot).cpu
        assert 2.5 < left.max() / left.min() < 7


@pytest.mark.parametrize("worker", ["m4.2xlarge-0", "m4.xlarge", "backup-1"])
def test_tasks_leave_what_they_do_not_take(worker):
    tasks, trace = worker_tasks(worker), TRACES["tasks"](worker)
    for now in np.random.default_rng(0).uniform(0, 5011, 20):
        runs = (tasks.start <= now) & (now < tasks.end)
        level = np.searchsorted(trace.at, now, side="right") - 1
        assert trace.cpu[level] == pytest.approx(1 - tasks.cpu[runs].sum())
        assert trace.memory[level] == pytest.approx(1 - tasks.memory[runs].sum())


def test_the_two_hours_are_never_joined():
    # Each has its own length, after which it repeats, and neither continues in the other.
    assert {TRACES["usage"](w).repeat for w in ("m4.xlarge", "backup-0")} == {3600.0}
    assert {TRACES["tasks"](w).repeat for w in ("m4.xlarge", "backup-0")} == {5011.0}
    assert usage_trace("m4.xlarge").at[-1] == 3300
    assert worker_tasks("m4.xlarge").end.max() == 5011


@pytest.mark.parametrize("trace", TRACES)
def test_balancing_beats_equal_batches(trace):
    cluster = ClusterB(trace).make(noisy=False)
    at = cluster.conditions(0, now=0.0)
    best = cluster.expected_times(cluster.optimum(at), at).max()
    assert best < 0.6 * cluster.expected_times(np.full(32, 128), at).max()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trace": "both"}, "trace of Cluster-B must be one of usage, tasks, got 'both'"),
        ({"backups": 3}, "backups of Cluster-B must be 0 to 2, got 3"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(InvalidSetting) as caught:
        ClusterB(**settings)
    assert str(caught.value) == message


def test_an_unknown_worker_is_refused():
    with pytest.raises(InvalidSetting, match=r"must be one of m4\.2xlarge-0, .*, got 'm5-0'"):
        worker_tasks("m5-0")
