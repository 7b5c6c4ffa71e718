"""Training from local partitions: each sample once per traversal, and migrations in the loop."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from evenstep.core import Limits
from evenstep.errors import InvalidSetting
from evenstep.partitions import MigrationRule, plan_migration, target_sizes
from evenstep.partitions.rules.partitioning import deal_by_class, deal_mixed
from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.engine.experiment import Experiment
from evenstep.simulator.engine.local_samples import LocalSamples
from evenstep.simulator.engine.simulation import Setup
from evenstep.simulator.workloads.digits import softmax_digits
from evenstep.simulator.workloads.workload import gradients
from tests.simulator.engine.test_staleness import cluster_of

BATCH_SIZES = np.array([8, 12, 16, 20, 24])
CLUSTER = replace(cluster_of(1.0, 1.0, 1.0, 1.0, 1.0), total=80)
"""Iterations take a second, whatever the batch sizes."""
STATIC = Setup("static:shares=8/12/16/20/24")
WORKLOAD = softmax_digits(torch.float64)


def local(seed=0, **settings):
    return LocalSamples(deal_by_class(WORKLOAD.labels, 5), seed=seed, **settings)


def train(samples, updates, setup=STATIC, on=CLUSTER, scheme="bsp", **how):
    run = Experiment(scheme, setup, **how).start(on, WORKLOAD, samples)
    for _ in run.advance(updates):
        pass
    return run


class Watched:
    """Records the samples dealt to each worker in each iteration."""

    def __init__(self, samples):
        self._deal = samples.deal
        self.batches = []
        samples.deal = self

    def __call__(self, worker, iteration, sizes):
        batch = self._deal(worker, iteration, sizes)
        self.batches.append((iteration, worker, batch))
        return batch

    def of(self, worker, first=0, last=10**9):
        return np.concatenate([b for k, w, b in self.batches if w == worker and first <= k < last])


def is_traversals(dealt, partition):
    """Whether each sample of a partition is dealt once before any is dealt again, and so on."""
    whole = len(dealt) // len(partition) * len(partition)
    passes = dealt[:whole].reshape(-1, len(partition))
    rest = dealt[whole:]
    return (
        all(np.array_equal(np.sort(samples), np.sort(partition)) for samples in passes)
        and len(np.unique(rest)) == len(rest)
        and bool(np.isin(rest, partition).all())
    )


def test_each_sample_of_a_partition_is_used_once_in_a_traversal():
    samples = local()
    watched = Watched(samples)
    train(samples, updates=60)
    for worker, partition in enumerate(samples.partitions):
        dealt = watched.of(worker)
        assert len(dealt) == 60 * BATCH_SIZES[worker]
        assert is_traversals(dealt, partition)
    fastest = watched.of(4)[: 2 * len(samples.partitions[4])].reshape(2, -1)
    assert not np.array_equal(*fastest)
    assert samples.migrations == []


def test_samples_move_once_the_gap_is_exceeded_and_counting_restarts():
    samples = local(rule=MigrationRule())
    watched = Watched(samples)
    before = samples.partitions
    run = train(samples, updates=120)
    (migration,) = samples.migrations
    moved_at = round(migration.start)
    sizes = np.array([len(partition) for partition in before])
    gaps = [np.ptp(k * BATCH_SIZES / sizes) for k in (moved_at - 1, moved_at)]
    assert gaps[0] <= 2 < gaps[1] == migration.gap
    assert run.times[moved_at - 1] == pytest.approx(migration.start) == migration.end
    for worker in range(5):
        assert is_traversals(watched.of(worker, last=moved_at), before[worker])
        assert is_traversals(watched.of(worker, first=moved_at), samples.partitions[worker])
    # Counting starts at the migration, and is one iteration behind at the end of the run.
    consumed = (120 - 1 - moved_at) * BATCH_SIZES
    assert samples.traversals.consumed.tolist() == consumed.tolist()
    assert samples.traversals.gap < 0.1


def test_orders_are_not_repeated_after_a_migration():
    """The middle worker keeps its samples, but not their order."""
    samples = LocalSamples(np.split(np.arange(30), 3), rule=MigrationRule(threshold=0.9))
    orders = []
    for k in range(5):
        samples.boundary(float(k))
        orders += [samples.deal(w, k, np.array([5, 10, 15])) for w in range(3)][1:2]
    assert [m.plan.targets.tolist() for m in samples.migrations] == [[5, 10, 15]]
    assert {tuple(np.sort(order)) for order in orders} == {tuple(range(10, 20))}
    assert len({tuple(order) for order in orders}) == len(orders)


def test_smallest_number_of_samples_moves():
    samples = local(rule=MigrationRule())
    targets = target_sizes(WORKLOAD.num_samples, BATCH_SIZES, Limits.of(5))
    fewest = plan_migration(samples.sizes, targets).num_moved
    train(samples, updates=100)
    assert samples.sizes.tolist() == targets.tolist()
    assert sum(migration.plan.num_moved for migration in samples.migrations) == fewest


def test_with_a_policy_that_learns_the_sizes_in_noise_few_more_samples_move():
    noisy = make_scenario("G", num_workers=4, iterations=140, seed=0)
    samples = LocalSamples(deal_mixed(WORKLOAD.num_samples, 4), rule=MigrationRule())
    optimum = noisy.optimum(noisy.conditions(0, 0.0))
    targets = target_sizes(WORKLOAD.num_samples, optimum, Limits.of(4))
    fewest = plan_migration(samples.sizes, targets).num_moved
    train(samples, updates=140, setup=Setup("equal_finish"), on=noisy)
    moved = sum(migration.plan.num_moved for migration in samples.migrations)
    assert len(samples.migrations) <= 2
    assert fewest * 0.8 <= moved <= fewest * 1.2


def test_migration_takes_effect_for_all_at_the_first_boundary_after_its_last_sample():
    """The transfers of the fastest worker take 5 s, and iterations take 1 s."""
    plain = local(rule=MigrationRule())
    train(plain, updates=60)
    (at_once,) = plain.migrations
    fastest = sum(t.count for t in at_once.plan.transfers if t.receiver == 4)
    bandwidth = np.array([np.nan, np.nan, np.nan, np.nan, fastest * 10 / 4.5])
    slow = local(rule=MigrationRule(), sample_bytes=10.0, bandwidth=bandwidth)
    watched = Watched(slow)
    before = slow.partitions
    train(slow, updates=60)
    (migration,) = slow.migrations
    assert migration.start == at_once.start
    assert migration.end == pytest.approx(migration.start + 4.5)
    first = round(migration.start) + 5
    for worker in range(5):
        assert is_traversals(watched.of(worker, last=first), before[worker])
        assert is_traversals(watched.of(worker, first=first), slow.partitions[worker])
    # The counts have grown, but the plan is the one that was decided.
    assert slow.sizes.tolist() == plain.sizes.tolist()


def test_importance_weights_give_the_gradient_of_all_samples():
    """Worker 0 traverses its samples twice in the time of the others."""
    sizes = np.array([256, 512, 768])
    partitions = np.split(np.random.default_rng(0).permutation(1536), np.cumsum(sizes)[:-1])
    on = replace(cluster_of(1.0, 1.0, 1.0), total=1792)
    setup = Setup("static:shares=512/512/768")
    start = WORKLOAD.make_model(0)
    whole = gradients(WORKLOAD, start, np.arange(1536))

    def off(importance):
        samples = LocalSamples(partitions, importance=importance)
        run = train(samples, 1, setup, on, optimizer="sgd:learning_rate=1.0")
        expected = [p.detach() - g for p, g in zip(start.parameters(), whole, strict=True)]
        pairs = zip(run.parameters, expected, strict=True)
        return max(float((got - wanted).abs().max()) for got, wanted in pairs)

    assert off(importance=True) < 1e-12
    assert off(importance=False) > 1e-3


def test_same_seed_gives_the_same_bytes_and_another_one_others():
    def result(seed):
        samples = local(seed, rule=MigrationRule(), labels=WORKLOAD.labels)
        run = train(samples, updates=50)
        arrays = [p.numpy() for p in run.parameters] + list(samples.partitions)
        return b"".join(array.tobytes() for array in arrays)

    assert result(1) == result(1) != result(2)


def test_gradients_that_are_not_used_consume_nothing():
    samples = local(rule=MigrationRule())
    on = replace(cluster_of(2.0, 1.0, 1.0, 1.0, 1.0), total=80)
    train(samples, 10, Setup("even"), on, "bsp:backups=1")
    assert samples.traversals.consumed[0] == 0
    assert (samples.traversals.consumed[1:] > 0).all()


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidSetting, match=r"^partitions .*\(2\), got 5$"):
        train(local(), 1, Setup("even"), cluster_of(1.0, 1.0))
    with pytest.raises(InvalidSetting, match=r"samples must stay\b.*\basp\b"):
        train(local(rule=MigrationRule()), 1, Setup("even"), scheme="asp")
    with pytest.raises(InvalidSetting, match=r"^bandwidth .*\b5 entries\b.*, got shape \(3,\)$"):
        local(bandwidth=np.ones(3))
    with pytest.raises(InvalidSetting, match=r"bandwidth must be > 0, got 0\.0 for worker 2"):
        local(bandwidth=np.array([1.0, np.nan, 0.0, 1.0, 1.0]))
    with pytest.raises(InvalidSetting, match=r"^sample_bytes .*>= 0, got -1"):
        local(sample_bytes=-1)
