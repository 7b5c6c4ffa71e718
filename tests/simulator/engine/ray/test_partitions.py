"""Training from local partitions on Ray: as in virtual time, with samples that really move."""

import signal
from dataclasses import replace

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.partitions import MigrationRule
from evenstep.partitions.rules.partitioning import deal_by_class
from evenstep.simulator.engine.local_samples import LocalSamples
from evenstep.simulator.ray_engine.calls import get
from evenstep.simulator.ray_engine.start import ray_run
from evenstep.simulator.workloads.svm import linear_svm
from tests.simulator.engine.ray.injecting import Injected, send
from tests.simulator.engine.ray.training import (
    CLUSTER,
    EXACT,
    QUICK,
    cluster_with,
    difference,
    experiment,
    trained,
    virtual,
)

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("local_ray")]

STATIC = "static:shares=1/3"
UPDATES = 12


def local(**settings):
    return LocalSamples(deal_by_class(EXACT.labels, CLUSTER.num_workers), seed=3, **settings)


def migrating():
    """Samples that migrate after a few iterations: each widens the gap of counts by 1/48."""
    return local(rule=MigrationRule(threshold=0.1), labels=EXACT.labels)


class Observed(Injected):
    """Checks which samples each worker holds, before the last iteration."""

    def __init__(self, faults):
        super().__init__(faults)
        self.strangers: list[bool] = []

    def __call__(self, engine, worker, iteration):
        super().__call__(engine, worker, iteration)
        if iteration == UPDATES - 1:
            own, others = engine._samples.partitions[:: 1 - 2 * worker]
            handle = engine._workers.handles[worker]
            _, part = get(handle.give.options(num_returns=1).remote(own), 60.0)
            assert np.array_equal(part.samples, np.sort(own))
            assert np.array_equal(part.rows[1], EXACT.labels[part.samples])
            with pytest.raises(Exception, match=rf"\bown\b.*, got .*\b{others[0]}\b"):
                get(handle.give.options(num_returns=1).remote(others[:1]), 60.0)
            self.strangers.append(True)


def test_samples_move_between_workers_at_the_boundary_of_virtual_time():
    """One worker is killed before samples move: the first attempt fails. Then another is killed."""
    expected = migrating()
    parameters = virtual(UPDATES, expected, policy=STATIC)
    samples = migrating()

    def kill_before_moving(engine):
        move = samples._move

        def move_without(after):
            send(signal.SIGKILL, "worker 1")(engine)
            samples.move_by(move)
            return move(after)

        samples.move_by(move_without)

    watch = Observed({(0, 2): kill_before_moving, (0, 8): send(signal.SIGKILL, "worker 0")})
    run, found = trained(policy=STATIC, samples=samples, watch=watch, updates=UPDATES)
    ((planned,), (moved,)) = expected.migrations, samples.migrations
    assert moved.plan.transfers == planned.plan.transfers
    assert len(watch.strangers) == 2
    for one, other in zip(samples.partitions, expected.partitions, strict=True):
        assert np.array_equal(one, other)
    faults = [(fault.who, fault.what.split("; ")[-1]) for fault in run.faults]
    assert ("migration", "it is tried again at the next boundary") in faults
    assert {who for who, _ in faults} == {"migration", "worker 0", "worker 1"}
    # It took effect one boundary later, so that one iteration had other samples.
    assert samples.traversals.consumed.sum() == expected.traversals.consumed.sum() - CLUSTER.total
    assert 0 < difference(found, parameters) < 0.1


@pytest.mark.parametrize("make", [migrating, lambda: local(importance=True)])
def test_parameters_are_those_of_virtual_time(make):
    expected, samples = make(), make()
    parameters = virtual(UPDATES, expected, policy=STATIC)
    run, found = trained(policy=STATIC, samples=samples, updates=UPDATES, num_shards=2)
    assert difference(found, parameters) < 1e-10
    assert samples.traversals.consumed.tolist() == expected.traversals.consumed.tolist()
    assert len(samples.migrations) == len(expected.migrations)
    assert run.faults == []


def test_gradients_that_are_not_used_consume_nothing():
    cluster = cluster_with(2.0, 200.0)
    samples = migrating()
    settings = replace(QUICK, scale=0.2)
    _, _ = trained("bsp:backups=1", cluster=cluster, samples=samples, settings=settings, updates=4)
    assert samples.traversals.consumed.tolist() == [0, 3 * 16]


def test_invalid_runs_are_refused():
    with (
        pytest.raises(InvalidSetting, match=r"^partitions .*\(3\), got 2$"),
        ray_run(experiment(), cluster_with(1.0, 1.0, 1.0), EXACT, QUICK, local()),
    ):
        pass
    with (
        pytest.raises(InvalidSetting, match=r"partitions .*\brows of arrays\b"),
        ray_run(experiment(), CLUSTER, linear_svm(), QUICK, local()),
    ):
        pass
