"""The stock order: torch's permutations and the padding of its DistributedSampler, in numpy."""

import time

import numpy as np
import pytest

from evenstep.core import stock_order as module
from evenstep.core.stock_order import Pad, padded, padded_length, stock_order
from evenstep.errors import InvalidSetting

SEEDS = (0, 1, 7, 12345, 2**31, 2**32 - 1, 2**32, 2**40 + 7, 2**64 - 8, -1, -5, -(2**40), -(2**63))

WRITTEN = {
    (1, 0, 0): [0],
    (2, 0, 0): [0, 1],
    (5, 0, 0): [4, 0, 1, 3, 2],
    (5, 0, 1): [0, 4, 2, 3, 1],
    (10, 3, 4): [5, 0, 3, 4, 1, 7, 9, 6, 8, 2],
}
"""By torch, for where it is not installed."""


@pytest.mark.parametrize(("num_samples", "seed", "epoch"), WRITTEN)
def test_order_is_what_torch_gave(num_samples, seed, epoch):
    assert stock_order(num_samples, seed, epoch).tolist() == WRITTEN[num_samples, seed, epoch]


@pytest.mark.parametrize("seed", SEEDS)
def test_order_is_that_of_torch_for_any_seed_and_epoch(seed):
    sampler_of = stock_sampler()
    for num_samples in [*range(60), 127, 1000, 4097, 2**16 + 1]:
        for epoch in (0, 1, 7):
            expected = sampler_of(num_samples, 1, seed=seed, epoch=epoch)
            assert stock_order(num_samples, seed, epoch).tolist() == expected


@pytest.mark.parametrize("num_samples", [2**20 - 1, 2**20, 1_281_167, 10**7])
def test_order_of_many_samples_is_that_of_torch(num_samples):
    torch = pytest.importorskip("torch")
    expected = torch.randperm(num_samples, generator=torch.Generator().manual_seed(7)).numpy()
    np.testing.assert_array_equal(stock_order(num_samples, 3, 4), expected)


def test_a_million_samples_are_shuffled_in_well_under_a_second():
    began = time.process_time()
    stock_order(10**6, 0, 0)
    assert time.process_time() - began < 1


def test_shuffle_of_huge_data_sets_is_torchs_loop_with_draws_of_64_bits(monkeypatch):
    # Compared with torch itself once, at 214,748,364 samples; here with the same loop.
    monkeypatch.setattr(module, "_MANY", 0)
    for num_samples in [0, 1, 2, 3, 10, 65, 1000]:
        for seed in range(20):
            random = np.random.RandomState(seed)
            expected = list(range(num_samples))
            for i in range(num_samples):
                high, low = random.randint(0, 2**32, size=2, dtype=np.uint32).tolist()
                target = (high << 32 | low) % (i + 1)
                expected[i] = expected[target]
                expected[target] = i
            assert stock_order(num_samples, seed, 0).tolist() == expected


@pytest.mark.parametrize("seed", [2**64 - 1, -(2**63) - 2])
def test_seeds_that_torch_refuses_are_refused(seed):
    with pytest.raises(InvalidSetting, match=r"seed \+ epoch must be .* got"):
        stock_order(5, seed, 1)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("drop_last", [False, True])
def test_padding_is_that_of_the_distributed_sampler(num_workers, drop_last):
    sampler_of = stock_sampler()
    pad: Pad = "truncate" if drop_last else True
    for num_samples in range(1, 30):
        length = padded_length(num_samples, num_workers, pad)
        order = padded(stock_order(num_samples, 3, 2), length)
        dealt = [
            sampler_of(num_samples, num_workers, rank, drop_last=drop_last, seed=3, epoch=2)
            for rank in range(num_workers)
        ]
        assert order.tolist() == [sample for row in zip(*dealt, strict=True) for sample in row]


def test_without_padding_the_order_is_the_data_set():
    assert padded_length(10, 4, False) == 10


def stock_sampler():
    """Return a function that returns what a DistributedSampler deals to a worker."""
    data = pytest.importorskip("torch.utils.data")

    def of(num_samples, num_workers, rank=0, *, epoch=0, **options):
        sampler = data.DistributedSampler(range(num_samples), num_workers, rank, **options)
        sampler.set_epoch(epoch)
        return list(sampler)

    return of
