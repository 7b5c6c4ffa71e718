"""The options of an existing DataLoader, as the balancer's loader takes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    default_collate,
)

from evenstep.errors import InvalidSetting
from evenstep.pytorch.fetching import count_samples
from evenstep.pytorch.loader import BalancedLoader
from evenstep.pytorch.loader_options import options_of
from evenstep.pytorch.local_loader import LocalLoader
from evenstep.pytorch.stream_loader import StreamLoader
from evenstep.training.epochs import Epochs
from tests.pytorch.setup import Indices

DATA = Indices(65)
BATCH = 6
WORKERS = 2
LOADING = {
    "collate_fn": default_collate, "num_workers": 0, "pin_memory": False, "pin_memory_device": "",
    "worker_init_fn": None, "generator": None, "in_order": True,
}  # fmt: skip


def options(loader: DataLoader[Any], **given: Any) -> dict[str, Any]:
    num_samples = count_samples(loader.dataset)
    return options_of(loader, num_samples, BATCH * WORKERS, WORKERS, given)  # type: ignore[arg-type]


def order_of(loader: DataLoader[Any], **given: Any) -> dict[str, Any]:
    """Return the options that are about the order of samples."""
    return {name: it for name, it in options(loader, **given).items() if name not in LOADING}


def sharded(**settings: Any) -> DistributedSampler[Any]:
    return DistributedSampler(DATA, **{"num_replicas": WORKERS, "rank": 1, **settings})


def with_sampler(sampler: Any, **settings: Any) -> DataLoader[Any]:
    return DataLoader(DATA, BATCH, sampler=sampler, **settings)


def test_everything_that_is_not_the_order_is_taken():
    assert options(DataLoader(DATA, BATCH)) == LOADING | {"shuffle": False, "drop_last": False}
    generator = torch.Generator().manual_seed(3)
    settings: dict[str, Any] = {
        "collate_fn": list, "num_workers": 1, "pin_memory": False, "timeout": 9,
        "worker_init_fn": print, "prefetch_factor": 5, "persistent_workers": True,
        "generator": generator,
    }  # fmt: skip
    taken = options(DataLoader(DATA, BATCH, **settings))
    assert {name: taken[name] for name in settings} == settings


@pytest.mark.parametrize(
    ("loader", "order"),
    [
        (DataLoader(DATA, BATCH, shuffle=True), {"shuffle": True, "drop_last": False}),
        (DataLoader(DATA, BATCH, drop_last=True), {"shuffle": False, "drop_last": True}),
        (with_sampler(SequentialSampler(DATA)), {"shuffle": False, "drop_last": False}),
        (
            with_sampler(RandomSampler(DATA, generator=torch.Generator().manual_seed(4))),
            {"shuffle": True, "drop_last": False, "seed": 4},
        ),
        (
            with_sampler(sharded(seed=7), drop_last=True),
            {"shuffle": True, "drop_last": True, "seed": 7, "pad": True},
        ),
        (
            with_sampler(sharded(shuffle=False)),
            {"shuffle": False, "drop_last": False, "seed": 0, "pad": True},
        ),
        (
            with_sampler(sharded(drop_last=True)),
            {"shuffle": True, "drop_last": False, "seed": 0, "pad": "truncate"},
        ),
        (
            DataLoader(DATA, batch_sampler=BatchSampler(sharded(), BATCH, drop_last=True)),
            {"shuffle": True, "drop_last": True, "seed": 0, "pad": True},
        ),
    ],
)
def test_order_is_that_of_the_sampler(loader, order):
    assert order_of(loader) == order


@pytest.mark.parametrize("num_samples", range(24, 37))
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("drops_batch", [False, True])
def test_iterations_are_the_batches_of_the_data_loaders(num_samples, drop_last, drops_batch):
    data = Indices(num_samples)
    loaders = []
    for rank in range(WORKERS):
        sampler: Any = DistributedSampler(data, WORKERS, rank, drop_last=drop_last, seed=4)
        sampler.set_epoch(2)
        loaders.append(DataLoader(data, BATCH, sampler=sampler, drop_last=drops_batch))
    expected = [
        sorted(index for indices, _ in batches for index in indices.tolist())
        for batches in zip(*loaders, strict=True)
    ]
    taken = order_of(loaders[0])
    epochs = Epochs(num_samples, BATCH * WORKERS, num_workers=WORKERS, **taken)
    epochs.set_epoch(2)
    assert len(epochs) == len(loaders[0])
    found = []
    while (dealt := epochs.deal(np.array([12]), 0)) is not None:
        found.append(sorted(dealt.samples.tolist()))
        epochs.advance()
    assert found == expected


@pytest.mark.parametrize(
    "sampler",
    [
        SubsetRandomSampler(range(30)),
        RandomSampler(DATA, replacement=True),
        RandomSampler(DATA, num_samples=30),
        SequentialSampler(range(30)),
    ],
)
def test_any_other_sampler_is_passed_on(sampler):
    assert order_of(with_sampler(sampler)) == {"sampler": sampler, "drop_last": False}


def test_explicit_arguments_replace_those_of_the_data_loader():
    loader = with_sampler(sharded(seed=7), num_workers=1, prefetch_factor=3)
    assert order_of(loader, num_workers=0) == {
        "shuffle": True, "drop_last": False, "seed": 7, "pad": True,
    }  # fmt: skip
    given = {"shuffle": False, "seed": 1, "drop_last": True, "prefetch_factor": 4}
    taken = options(loader, **given)
    assert {name: taken[name] for name in given} == given
    # A sampler of one worker's samples is no obstacle if it is replaced.
    foreign = with_sampler(sharded(num_replicas=3))
    assert order_of(foreign, shuffle=True)["shuffle"] is True
    assert "sampler" not in order_of(with_sampler(SubsetRandomSampler(range(30))), shuffle=True)


class OwnBatches(BatchSampler):
    pass


class OwnShare(Sampler[int]):
    num_replicas = WORKERS

    def __len__(self) -> int:
        return 33


class OwnDistributed(DistributedSampler[Any]):
    pass


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


@pytest.mark.parametrize(
    ("loader", "got"),
    [
        (DataLoader(DATA, 5), "total, 12, .* got 5"),
        (DataLoader(DATA, batch_size=None), "got batch_size=None"),
        (
            DataLoader(DATA, batch_sampler=OwnBatches(SequentialSampler(DATA), BATCH, False)),
            "got a OwnBatches",
        ),
        (with_sampler(sharded(num_replicas=3)), "got a DistributedSampler for 3"),
        (
            with_sampler(DistributedSampler(Indices(9), num_replicas=WORKERS, rank=0)),
            "got a DistributedSampler for 2",
        ),
        (with_sampler(OwnShare()), "got a OwnShare for 2"),
        (
            with_sampler(OwnDistributed(DATA, num_replicas=WORKERS, rank=0)),
            "got a OwnDistributed for 2",
        ),
        (DataLoader(Stream(), BATCH), "map-style .* got Stream"),
        (DataLoader(Stream(), batch_size=None), "map-style .* got Stream"),
    ],
)
def test_loaders_that_cannot_be_taken_are_refused(loader, got):
    with pytest.raises(InvalidSetting, match=got):
        options(loader)


@pytest.mark.parametrize("kind", [BalancedLoader, LocalLoader, StreamLoader])
def test_loaders_have_the_mark_with_which_accelerate_leaves_them_alone(kind):
    # Accelerate is not installed here; it reads this attribute before any other.
    assert getattr(kind, "_is_accelerate_prepared", False) is True
