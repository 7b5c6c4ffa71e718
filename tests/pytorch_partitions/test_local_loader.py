"""A loader over a worker's own samples: each once in a traversal, weighted as one batch."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from evenstep.partitions import MigrationRule
from evenstep.partitions.store import Partition
from evenstep.pytorch import Serving
from tests.pytorch.setup import balanced, cycle, distance, exchange, gradients, model_of, net
from tests.pytorch_partitions.partitions import endless, make, one_by_one, train_on, training

pytestmark = pytest.mark.distributed

TABLE = [(4, 9, 3), (4, 9, 3), (1, 14, 1), (6, 5, 5), (2, 3, 11)]
"""The last one is more than that worker has."""


def used(folders, iterations, **settings):
    """Train for some iterations; return whose samples were used, and what is known of all."""
    numbers, sizes = [], []
    with training(folders, TABLE, **settings) as (balancer, loader):
        for batch in itertools.islice(endless(loader), iterations):
            numbers += batch[2].tolist()
            sizes.append(len(batch[2]))
            train_on(balancer, batch)
        return numbers, sizes, loader.traversals.consumed.tolist(), len(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_sample_is_used_once_in_each_traversal(workers, tmp_path, num_workers):
    held = [23, 30, 7]
    found = workers.run(
        used, count=3, folders=make(tmp_path, *held), iterations=40, num_workers=num_workers
    )
    for worker, (numbers, sizes, consumed, length) in enumerate(found):
        assert sizes == [TABLE[k % 5][worker] for k in range(40)]
        assert one_by_one(numbers, held[worker])
        assert consumed == [sum(others) for _, others, _, _ in found]
        assert length == 4  # 60 samples, 16 at a time.


def joined(batches, weights):
    """Return the gradient of a mean over workers, each weighted."""
    model = net()
    for (samples, labels, _), weight in zip(batches, weights, strict=True):
        if weight:
            (weight * cross_entropy(model(samples), labels)).backward()
    return gradients(model)


def off(folders, table, **settings):
    """Return how far the gradients of iterations are from what they should be."""
    errors, held = [], np.array([len(Partition.open(folder)) for folder in folders])
    with training(folders, table, minimum=0, **settings) as (balancer, loader):
        for batch in itertools.islice(endless(loader), 4):
            batches: list[Any] = [None] * len(folders)
            dist.all_gather_object(batches, batch)
            model_of(balancer).zero_grad()
            train_on(balancer, batch)
            sizes = balancer.plan.sizes
            counted = np.where(sizes > 0, held, 0) if settings.get("importance") else sizes
            reference = joined(batches, counted / counted.sum())
            errors.append(distance(gradients(model_of(balancer)), reference))
    return max(errors)


@pytest.mark.parametrize("importance", [False, True])
def test_gradients_are_those_of_the_joined_batch_or_weighted_by_partitions(
    workers, tmp_path, importance
):
    folders = make(tmp_path, 20, 10)
    table = [(3, 13), (15, 1), (16, 0), (8, 8)]
    for error in workers.run(off, folders=folders, table=table, importance=importance):
        assert error < 1e-6


def accumulated(folders, pieces):
    """Return how far an accumulated gradient is from that of batches weighted by partitions."""
    held = np.array([len(Partition.open(folder)) for folder in folders])
    batches: list[Any] = [[] for _ in folders]
    with training(folders, [(3, 13), (11, 5)], importance=True) as (balancer, loader):
        model = model_of(balancer)
        own = []
        for i, batch in enumerate(itertools.islice(endless(loader), pieces)):
            own.append(batch)
            with model.no_sync() if i < pieces - 1 else nullcontext():
                train_on(balancer, batch)
        dist.all_gather_object(batches, own)
        weights = held / held.sum()
        reference = sum(joined(parts, weights) for parts in zip(*batches, strict=True))
        return distance(gradients(model), reference)


def test_accumulated_gradients_are_weighted_by_partitions_too(workers, tmp_path):
    for error in workers.run(accumulated, folders=make(tmp_path, 20, 10), pieces=3):
        assert error < 1e-6


def weigh_by_counts(folders):
    with training(folders, [(8, 8)], importance=True) as (balancer, loader):
        for samples, labels, _ in loader:
            balancer.weigh(cross_entropy(model_of(balancer)(samples), labels), 8).backward()


def test_importance_goes_without_counts(workers, tmp_path):
    for failure in workers.failures(weigh_by_counts, folders=make(tmp_path, 20, 10)):
        assert "leave balancer.weigh out" in failure.message


def look_and_go_on(folders):
    """Look at a batch on worker 0 alone, train, save, go on, and go on from what was saved."""
    table = [(5, 3), (2, 6)]
    with training(folders, table) as (balancer, loader):
        if dist.get_rank() == 0:
            next(iter(loader))
        numbers, batches = [], endless(loader)
        for batch in itertools.islice(batches, 10):
            numbers += batch[2].tolist()
            train_on(balancer, batch)
        state = balancer.state_dict(), loader.state_dict()
        ahead = next(batches)[2].tolist()
        position, counts = loader.state_dict()["position"], loader.traversals.counts.tolist()
    with training(folders, table) as (balancer, loader):
        balancer.load_state_dict(state[0])
        loader.load_state_dict(state[1])
        again = next(iter(loader))[2].tolist()
        now = loader.state_dict()["position"], loader.traversals.counts.tolist()
    return numbers, ahead == again, now == (position, counts)


def test_looking_uses_nothing_up_and_a_checkpoint_goes_on(workers, tmp_path):
    for worker, (numbers, same_batch, same_place) in enumerate(
        workers.run(look_and_go_on, folders=make(tmp_path, 11, 13))
    ):
        assert one_by_one(numbers, (11, 13)[worker])
        assert same_batch
        assert same_place


def read_others(folders, others):
    """Return the traversal of the first batch, of a checkpoint of other partitions."""
    table = [(5, 3)]
    with training(folders, table) as (balancer, loader):
        for batch in itertools.islice(endless(loader), 4):
            train_on(balancer, batch)
        state = loader.state_dict()
    with training(others, table) as (balancer, loader):
        loader.load_state_dict(state)
        reading = loader.state_dict()["reading"]
        return reading["consumed"], reading["first"]


def test_a_checkpoint_of_other_partitions_begins_a_traversal(workers, tmp_path):
    folders, others = make(tmp_path / "a", 6, 10), make(tmp_path / "b", 10, 6)
    # Worker 0 was in its fourth traversal of 6 samples, after 20.
    found = workers.run(read_others, folders=folders, others=others)
    assert found == [([0, 0], 4)] * 2


def of_data_sets():
    """Train from a data set of this worker's own, of as many samples as its rank says."""
    size = (5, 9)[dist.get_rank()]
    with balanced(8, policy=cycle((2, 6)), warm_up=0) as balancer:
        loader = balancer.local_loader(TensorDataset(torch.arange(size)), shuffle=False)
        found = []
        for (numbers,) in loader:
            found += numbers.tolist()
            exchange(balancer)
        return found, loader.sizes.tolist()


def test_any_data_set_can_be_a_partition(workers):
    first, second = workers.run(of_data_sets)
    assert first == ([0, 1, 2, 3], [5, 9])
    assert second == ([*range(9), 0, 1, 2], [5, 9])


def misuse(folders, which):
    worker = dist.get_rank()
    own: Any = folders[worker]
    settings: dict[str, Any] = {}
    if which == "one folder":
        own = folders[0]
    elif which == "no folder on one" and worker == 1:
        own = folders[0] + "-missing"
    elif which == "rules":
        settings["rule"] = MigrationRule(threshold=2 + worker)
    elif which == "rule for a data set":
        own, settings["rule"] = TensorDataset(torch.arange(4)), MigrationRule()
    elif which == "serving without a rule" and worker == 1:
        settings["serving"] = Serving()
    elif which == "serving of another kind":
        settings["rule"] = MigrationRule()
        settings["serving"] = {"bandwidth": 1e6} if worker == 1 else None
    elif which == "minimum":
        settings["rule"] = MigrationRule(minimum=9)
    elif which == "batch size" and worker == 1:
        settings["batch_size"] = 4
    elif which == "locked":
        settings["rule"] = MigrationRule()
    with (
        Partition.open(folders[1], write=which == "locked" and worker == 1),
        balanced(8) as balancer,
    ):
        balancer.local_loader(own, **settings)


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("one folder", "a partition of its own, got that of worker 0 2 times"),
        ("no folder on one", "able to read its samples; worker 1: "),
        ("rules", "rule must be the same on all workers"),
        ("rule for a data set", "between partitions on disk"),
        ("serving without a rule", "worker 1: serving goes with a rule"),
        ("serving of another kind", "worker 1: serving must be a Serving or None, got {'band"),
        ("minimum", "samples for the minimum of every partition, 2 times 9, got 16"),
        ("batch size", "worker 1: batch_size must be left out"),
        ("locked", "samples of worker 1 cannot migrate: the agent did not start: "),
    ],
)
def test_what_is_wrong_on_one_worker_is_said_on_all(workers, tmp_path, which, message):
    for failure in workers.failures(misuse, folders=make(tmp_path, 8, 8), which=which):
        assert message in failure.message


def with_totals():
    """Return the sizes of an epoch of 14 samples whose total changes, and its lengths."""
    with balanced(8, mode="static", shares=[1, 3], warm_up=0) as balancer:
        loader = balancer.local_loader(TensorDataset(torch.arange(7)))
        found, lengths = [], [len(loader)]
        for (numbers,) in loader:
            found.append(len(numbers))
            exchange(balancer)
            balancer.total = 4
            lengths.append(len(loader))
        return found, lengths, loader.state_dict()["epoch"]


def test_epoch_uses_as_many_samples_as_all_workers_have_whatever_the_totals(workers):
    # 8 samples and then 4 and 4 of the 6 that are left.
    assert workers.run(with_totals) == [
        ([2, 1, 1], [2, 3, 3, 3], 1),
        ([6, 3, 3], [2, 3, 3, 3], 1),
    ]
