"""Batches: the samples of plain BSP, each once per epoch, each size as planned."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import random
import time
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from evenstep.core.stock_order import stock_order
from tests.pytorch.setup import Indices, balanced, cycle, exchange, net, visited

pytestmark = pytest.mark.distributed

TABLE = ((2, 10), (11, 1), (6, 6), (1, 11), (8, 4))
TOTAL = 12


def slices(order):
    """Return the samples of each iteration of an epoch in this order, padded for two workers."""
    order = order + order[: len(order) % 2]
    return [sorted(order[i : i + TOTAL]) for i in range(0, len(order), TOTAL)]


def joined(batches):
    """Return the samples of each iteration, from those of each worker."""
    return [sorted(itertools.chain(*parts)) for parts in zip(*batches, strict=True)]


def sizes_of(batches):
    """Return the sizes of all workers, iteration by iteration."""
    return [tuple(map(len, parts)) for parts in zip(*batches, strict=True)]


def two_epochs(num_samples, table=TABLE, **settings):
    with balanced(TOTAL, policy=cycle(*table) if table else "even") as balancer:
        loader = balancer.loader(Indices(num_samples), **settings)
        assert loader.num_samples == num_samples
        assert loader.batch_size == balancer.batch_size
        return [visited(balancer, loader) for _ in range(2)], len(loader)


def run_two_epochs(workers, **arguments):
    """Return the batches of the workers, for each of two epochs."""
    results = workers.run(two_epochs, **arguments)
    for epochs, length in results:
        assert [len(epoch) for epoch in epochs] == [length, length]
    return [[epochs[epoch] for epochs, _ in results] for epoch in range(2)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_iterations_process_the_samples_that_even_does(workers, num_workers):
    balanced_epochs = run_two_epochs(workers, num_samples=65, num_workers=num_workers)
    plain_epochs = run_two_epochs(workers, num_samples=65, table=None)
    for epoch in range(2):
        expected = slices(stock_order(65, 0, epoch).tolist())
        assert joined(plain_epochs[epoch]) == expected
        assert joined(balanced_epochs[epoch]) == expected
    # Every iteration has the sizes of its own plan, however deep the prefetching.
    assert sizes_of(balanced_epochs[0]) == [*TABLE, (1, 5)]
    assert sizes_of(balanced_epochs[1]) == [*TABLE[1:], TABLE[0], (5, 1)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_epoch_without_padding_visits_each_sample_once(workers, num_workers):
    run = {"num_samples": 65, "pad": False, "num_workers": num_workers}
    for i, epoch in enumerate(run_two_epochs(workers, **run)):
        order = stock_order(65, 0, i).tolist()
        assert joined(epoch) == [sorted(order[k : k + TOTAL]) for k in range(0, 65, TOTAL)]


def test_truncated_epoch_leaves_out_what_is_too_few_for_all_workers(workers):
    for i, epoch in enumerate(run_two_epochs(workers, num_samples=65, pad="truncate")):
        assert joined(epoch) == slices(stock_order(65, 0, i).tolist()[:64])


def test_data_set_with_fewer_samples_than_workers_is_repeated(workers):
    run = {"num_samples": 1, "table": [(6, 6)]}
    for epoch in run_two_epochs(workers, **run):
        assert epoch == [[[0]], [[0]]]


def existing(num_workers, batch_size=TOTAL // 2, **given):
    """Visit two epochs of a DataLoader with a DistributedSampler."""
    with balanced(TOTAL, policy=cycle(*TABLE)) as balancer:
        data = Indices(65)
        stock = DataLoader(
            data, batch_size + balancer.worker * (batch_size != TOTAL // 2),
            sampler=DistributedSampler(data, seed=5), num_workers=num_workers,
            persistent_workers=num_workers > 0,
        )  # fmt: skip
        loader = balancer.loader(stock, **given)
        return [visited(balancer, loader) for _ in range(2)], len(loader)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_existing_data_loader_gives_the_data_set_and_its_settings(workers, num_workers):
    given: dict[str, Any]
    for given, seed, whole in (({}, 5, True), ({"seed": 6, "drop_last": True}, 6, False)):
        results = workers.run(existing, num_workers=num_workers, **given)
        for epoch in range(2):
            expected = slices(stock_order(65, seed, epoch).tolist())
            expected = expected if whole else expected[:-1]
            assert joined([epochs[epoch] for epochs, _ in results]) == expected


def epochs_set_on_the_sampler():
    """Visit the epochs that a script sets on the sampler that it has made."""
    with balanced(TOTAL, policy=cycle(*TABLE)) as balancer:
        sampler: DistributedSampler[Any] = DistributedSampler(Indices(36), seed=5)
        loader = balancer.loader(DataLoader(Indices(36), TOTAL // 2, sampler=sampler))
        seen = []
        for epoch in (3, 4, 9):
            sampler.set_epoch(epoch)
            seen.append(visited(balancer, loader))
        return seen


def test_epochs_are_those_that_are_set_on_the_replaced_sampler(workers):
    results = workers.run(epochs_set_on_the_sampler)
    for i, epoch in enumerate((3, 4, 9)):
        expected = slices(stock_order(36, 5, epoch).tolist())
        assert joined([seen[i] for seen in results]) == expected


def test_batch_size_of_a_data_loader_that_is_not_that_of_the_balancer_is_refused(workers):
    for failure in workers.failures(existing, num_workers=0, batch_size=5):
        assert failure.kind == "InvalidSetting"
        assert "got 5 on worker 0 and 6 on worker 1" in failure.message


def test_order_without_shuffling_is_that_of_the_data_set(workers):
    for epoch in run_two_epochs(workers, num_samples=30, shuffle=False):
        assert joined(epoch) == slices(list(range(30)))


def test_seed_changes_the_order(workers):
    first, _ = run_two_epochs(workers, num_samples=30, seed=5)
    assert joined(first) == slices(stock_order(30, 5, 0).tolist())


def test_tail_is_dropped_where_the_user_says_so(workers):
    for i, epoch in enumerate(run_two_epochs(workers, num_samples=65, drop_last=True)):
        assert joined(epoch) == slices(stock_order(65, 0, i).tolist())[:5]


def test_data_set_smaller_than_the_total_is_one_iteration(workers):
    for i, epoch in enumerate(run_two_epochs(workers, num_samples=7, pad=False)):
        assert joined(epoch) == [sorted(range(7))]
        assert sizes_of(epoch) == [[(1, 6), (6, 1)][i]]


def test_tail_too_small_for_all_leaves_some_without(workers):
    for epoch in run_two_epochs(workers, num_samples=13, pad=False):
        assert len(joined(epoch)[1]) == 1
        assert sorted(sizes_of(epoch)[1]) == [0, 1]


def few_samples(table, num_samples, **settings):
    """Train a model with BatchNorm, which cannot run one sample; return sizes and weights."""
    found = []
    with balanced(TOTAL, net(batch_norm=True), policy=cycle(*table), **settings) as balancer:
        for indices, _ in balancer.loader(Indices(num_samples), pad=False):
            found.append((len(indices), balancer._loop.share.samples))
            exchange(balancer)
    return found


@pytest.mark.parametrize("settings", [{"minimum": 0, "granularity": 2}, {"minimum": 1}], ids=str)
def test_tail_is_dealt_out_in_batches_that_a_worker_can_train(workers, settings):
    # In proportion, the 3 samples of the tail would be 2 and 1.
    run = {"table": [(8, 4)], "num_samples": TOTAL + 3, **settings}
    first, second = workers.run(few_samples, **run)
    assert [samples for _, samples in first] == [8, 3]
    assert [samples for _, samples in second] == [4, 0]
    # Worker 1 runs two samples there that are not its own, at no weight.
    assert second[1] == (2, 0)


def test_worker_without_samples_borrows_as_many_as_it_can_train(workers):
    run = {"table": [(12, 0), (0, 12)], "num_samples": 2 * TOTAL, "minimum": 0, "granularity": 2}
    assert workers.run(few_samples, **run) == [[(12, 12), (2, 0)], [(2, 0), (12, 12)]]


def weighted_and_subset(num_workers):
    # Every worker draws differently, as after torch.manual_seed(seed + rank).
    found = []
    with balanced(TOTAL, policy=cycle(*TABLE)) as balancer:
        torch.manual_seed(balancer.worker)
        weights = [float(i) for i in range(40)]
        for sampler in (WeightedRandomSampler(weights, 30), SubsetRandomSampler(range(5, 35))):
            loader = balancer.loader(Indices(40), sampler=sampler, num_workers=num_workers)
            found.append([visited(balancer, loader) for _ in range(2)])
    return found


@pytest.mark.parametrize("num_workers", [0, 1])
def test_samplers_of_the_user_give_the_order_of_all_workers(workers, num_workers):
    results = workers.run(weighted_and_subset, num_workers=num_workers)
    weighted, subset = (
        [joined([result[which][epoch] for result in results]) for epoch in range(2)]
        for which in range(2)
    )
    for epoch in subset:
        assert sorted(itertools.chain(*epoch)) == list(range(5, 35))
    assert subset[0] != subset[1]
    for epoch in weighted:
        drawn = list(itertools.chain(*epoch))
        assert len(drawn) == 30
        assert 0 not in drawn
        assert max(Counter(drawn).values()) > 1


class Point(NamedTuple):
    x: torch.Tensor
    label: int


class Structured(Dataset[Any]):
    """Samples of many kinds at once, as default collation takes them."""

    def __len__(self):
        return 48

    def __getitem__(self, i):
        return {
            "int": i, "float": i / 2, "text": str(i), "array": np.full(2, i, dtype=np.float32),
            "pair": (torch.full((2, 2), i), f"p{i}"), "point": Point(torch.tensor(i), i),
            "scalar": np.float32(i), "names": (f"a{i}", f"b{i}"), "none": {},
        }  # fmt: skip


def structures(num_workers, custom):
    def collate(samples):
        return [sample["int"] for sample in samples]

    with balanced(TOTAL, policy=cycle(*TABLE)) as balancer:
        collate_fn = collate if custom else None
        loader = balancer.loader(Structured(), num_workers=num_workers, collate_fn=collate_fn)
        batches = []
        for batch in loader:
            batches.append(batch)
            exchange(balancer)
        return batches


def test_batches_look_as_without_prefetching(workers):
    plain = workers.run(structures, num_workers=0, custom=False)
    ahead = workers.run(structures, num_workers=2, custom=False)
    assert [[len(batch["int"]) for batch in worker] for worker in ahead] == [
        [2, 11, 6, 1], [10, 1, 6, 11],
    ]  # fmt: skip
    for ours, theirs in zip(itertools.chain(*ahead), itertools.chain(*plain), strict=True):
        assert repr(ours) == repr(theirs)


def test_collate_function_of_the_user_is_used(workers):
    plain = workers.run(structures, num_workers=0, custom=True)
    assert [len(batch) for batch in plain[0]] == [2, 11, 6, 1]
    assert workers.run(structures, num_workers=2, custom=True) == plain


class Augmented(Dataset[Any]):
    """Samples with randomness of three kinds."""

    def __len__(self):
        return 48

    def __getitem__(self, i):
        return i, random.random(), np.random.random(), float(torch.rand(()))


def augmented(table, num_workers):
    found = {}
    with balanced(TOTAL, policy=cycle(*table)) as balancer:
        # Each worker's own randomness must neither matter nor be disturbed.
        torch.manual_seed(balancer.worker)
        expected = torch.rand(3)
        torch.manual_seed(balancer.worker)
        loader = balancer.loader(Augmented(), num_workers=num_workers, seed_samples=True)
        for epoch in range(2):
            for batch in loader:
                for i, *noise in zip(*(part.tolist() for part in batch), strict=True):
                    found[epoch, i] = tuple(noise)
                exchange(balancer)
        if num_workers == 0:
            assert torch.equal(torch.rand(3), expected)
    return found


def test_seeded_augmentation_does_not_depend_on_sizes_or_loading_processes(workers):
    def noise(**arguments):
        first, second = workers.run(augmented, **arguments)
        return first | second

    even = noise(table=[(6, 6)], num_workers=0)
    assert len(even) == 96
    assert len({even[epoch, 3] for epoch in range(2)}) == 2
    assert noise(table=TABLE, num_workers=0) == even
    assert noise(table=TABLE, num_workers=2) == even


def interrupted(settings, at, fresh):
    """Visit an epoch until a checkpoint is made, then the rest, in a new balancer or not."""
    with balanced(TOTAL, policy=cycle(*TABLE)) as balancer:
        torch.manual_seed(1)
        sampler = SubsetRandomSampler(range(60)) if "sampler" in settings else None
        settings = {**settings, "sampler": sampler}
        loader = balancer.loader(Indices(60), **settings)
        visited(balancer, loader)
        before, rest, sizes = [], [], []
        saved: Any = None
        for indices, _ in loader:
            exchange(balancer)
            if saved is None:
                before.append(indices.tolist())
            else:
                rest.append(indices.tolist())
                sizes.append(balancer.plan.sizes.tolist())
            if len(before) == at and saved is None:
                saved = balancer.state_dict(), loader.state_dict()
    if not fresh:
        return before, rest, sizes
    with balanced(TOTAL, policy=cycle(*TABLE)) as balancer:
        torch.manual_seed(2)
        loader = balancer.loader(Indices(60), **settings)
        balancer.load_state_dict(saved[0])
        loader.load_state_dict(saved[1])
        loader.set_epoch(1)
        rest, sizes = [], []
        for indices, _ in loader:
            rest.append(indices.tolist())
            sizes.append(balancer.plan.sizes.tolist())
            exchange(balancer)
        return before, rest, sizes


@pytest.mark.parametrize("settings", [{}, {"num_workers": 1}, {"sampler": "subset"}], ids=str)
def test_resuming_in_mid_epoch_visits_the_rest_with_the_same_plans(workers, settings):
    through = workers.run(interrupted, settings=settings, at=2, fresh=False)
    resumed = workers.run(interrupted, settings=settings, at=2, fresh=True)
    assert resumed == through
    assert len(resumed[0][0]) == 2
    assert len(resumed[0][1]) == 3


def left_early(how, num_workers=0, persistent=False):
    """Leave epochs in all ways but the last batch; return the samples of each pass."""
    passes = []
    with balanced(TOTAL, policy=cycle(*TABLE)) as balancer:
        loader = balancer.loader(
            Indices(36), num_workers=num_workers, persistent_workers=persistent
        )
        if how == "peek" and balancer.worker == 0:
            next(iter(loader))
        for number in range(3):
            if how == "set_epoch":
                loader.set_epoch(10 + number)
            samples = []
            try:
                for i, (indices, _) in enumerate(loader):
                    samples.append(indices.tolist())
                    exchange(balancer)
                    if how == "break" and number == 0 and i == 1:
                        break
                    if how == "raise" and number == 0 and i == 1:
                        raise KeyError("a mistake of the user")
            except KeyError:
                pass
            passes.append(samples)
    return passes


def run_left_early(workers, **arguments):
    results = workers.run(left_early, **arguments)
    return [joined([result[number] for result in results]) for number in range(3)]


@pytest.mark.parametrize("how", ["break", "raise"])
@pytest.mark.parametrize("loading", [{}, {"num_workers": 1, "persistent": True}], ids=str)
def test_after_an_epoch_left_early_comes_a_whole_one(workers, how, loading):
    first, second, third = run_left_early(workers, how=how, **loading)
    assert first == slices(stock_order(36, 0, 0).tolist())[:2]
    assert second == slices(stock_order(36, 0, 1).tolist())
    assert third == slices(stock_order(36, 0, 2).tolist())


def test_looking_at_a_batch_on_one_worker_changes_nothing(workers):
    passes = run_left_early(workers, how="peek")
    assert passes == [slices(stock_order(36, 0, epoch).tolist()) for epoch in range(3)]


def test_set_epoch_chooses_the_order(workers):
    passes = run_left_early(workers, how="set_epoch")
    assert passes == [slices(stock_order(36, 0, 10 + number).tolist()) for number in range(3)]


def abandoned_loader():
    """Return how long loading processes live after nobody uses their loader any more."""
    with balanced(TOTAL) as balancer:
        before = {child.pid for child in multiprocessing.active_children()}
        loader = balancer.loader(Indices(36), num_workers=1, persistent_workers=True)
        gc.disable()
        try:
            visited(balancer, loader)
            begun = time.monotonic()
            del loader
            left = {child.pid for child in multiprocessing.active_children()} - before
            return len(left), time.monotonic() - begun
        finally:
            gc.enable()


def test_loader_that_nobody_uses_ends_its_processes_at_once(workers):
    for left, seconds in workers.run(abandoned_loader):
        assert left == 0
        # Torch waits 5 seconds for processes that it cannot tell to end.
        assert seconds < 4


def two_loaders():
    """Validate between epochs: together, and on worker 0 alone; return the batches trained on."""
    with balanced(TOTAL, net(batch_norm=True), policy=cycle((4, 8), (9, 3))) as balancer:
        train = balancer.loader(Indices(36))
        validation = balancer.loader(Indices(20), shuffle=False)
        seen, validated = [], []
        for _ in range(2):
            seen.append(visited(balancer, train))
            validated.append([i for indices, _ in validation for i in indices.tolist()])
            if balancer.worker == 0:
                assert len(list(validation)) == 2
        return seen, validated


def test_validation_loader_on_the_same_balancer_disturbs_nothing(workers):
    results = workers.run(two_loaders)
    for epoch in range(2):
        assert joined([seen[epoch] for seen, _ in results]) == slices(
            stock_order(36, 0, epoch).tolist()
        )
        validated = [validated[epoch] for _, validated in results]
        assert sorted(itertools.chain(*validated)) == list(range(20))
