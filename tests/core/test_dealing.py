"""Dealing: every sample of a slice to exactly one worker, and few of them moved."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.core.dealing import (
    deal,
    home_of,
    num_iterations,
    shuffled,
    sizes_within,
    slice_of,
)
from evenstep.errors import InvalidSetting
from tests.figures import numbers_in

sizes_lists = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any)


def dealt(samples, sizes):
    return [deal(samples, sizes, worker) for worker in range(len(sizes))]


@given(sizes_lists)
def test_every_sample_is_dealt_exactly_once(sizes):
    sizes = np.array(sizes)
    samples = np.arange(100, 100 + sizes.sum())
    parts = dealt(samples, sizes)
    assert [len(part) for part in parts] == sizes.tolist()
    assert sorted(np.concatenate(parts)) == samples.tolist()


@given(sizes_lists, st.data())
def test_moving_one_sample_from_worker_to_worker_moves_few_others(sizes, data):
    before = np.array(sizes)
    giver = data.draw(st.sampled_from(np.flatnonzero(before).tolist()))
    taker = data.draw(st.integers(0, len(sizes) - 1))
    after = before.copy()
    after[giver] -= 1
    after[taker] += 1
    samples = np.arange(before.sum())
    pairs = zip(dealt(samples, before), dealt(samples, after), strict=True)
    new = sum(len(set(b.tolist()) - set(a.tolist())) for a, b in pairs)
    # One for the taker, and at most one for every worker beyond its home block in between.
    assert new <= len(sizes)


def test_takers_are_served_in_their_order():
    # Home blocks of 3; workers 0 and 1 leave 1, 2 and 5, from which 2 takes first, then 3.
    parts = dealt(np.arange(12), np.array([1, 2, 5, 4]))
    assert [part.tolist() for part in parts] == [
        [0], [3, 4], [6, 7, 8, 1, 2], [9, 10, 11, 5],
    ]  # fmt: skip


@given(st.integers(1, 200), st.integers(1, 8))
def test_even_sizes_are_the_home_blocks(count, num_workers):
    samples = np.arange(count)
    sizes = np.array([len(part) for part in np.array_split(samples, num_workers)])
    for worker in range(num_workers):
        home = home_of(samples, num_workers, worker)
        assert deal(samples, sizes, worker).tolist() == home.tolist()


@given(sizes_lists, st.integers(0, 2), st.data())
def test_tail_is_shared_out_with_respect_to_the_minimum(sizes, minimum, data):
    sizes = np.maximum(np.array(sizes), minimum)
    if not sizes.any():
        return
    count = data.draw(st.integers(1, int(sizes.sum())))
    tail = sizes_within(sizes, count, minimum)
    assert tail.sum() == count
    assert (tail >= 0).all()
    # A worker with samples has the minimum, or everything where there is less.
    assert (tail[tail > 0] >= min(minimum, count)).all()
    if count >= minimum * len(sizes):
        assert (tail >= np.minimum(minimum, sizes)).all()
    assert (tail[sizes == 0] == 0).all()


def test_sizes_stay_in_proportion_in_a_tail():
    assert sizes_within(np.array([60, 30, 10]), 50).tolist() == [30, 15, 5]


def test_slice_larger_than_the_total_is_refused():
    with pytest.raises(InvalidSetting) as refused:
        sizes_within(np.array([4, 4]), 9)
    assert numbers_in(str(refused.value)) == [8, 9]


@given(st.integers(0, 300), st.integers(1, 50), st.booleans())
def test_slices_of_an_epoch_are_all_its_samples(num_samples, total, drop_last):
    order = shuffled(num_samples, seed=3, epoch=1)
    length = num_iterations(num_samples, total, drop_last)
    slices = [slice_of(order, k, total) for k in range(length)]
    seen = sorted(i for part in slices for i in part.tolist())
    dropped = num_samples % total if drop_last else 0
    assert len(seen) == num_samples - dropped == len(set(seen))
    assert all(len(part) == total for part in slices[: num_samples // total])


def test_order_depends_on_seed_and_epoch():
    orders = [shuffled(50, seed, epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(map(tuple, orders))) == 4
    assert shuffled(50, 1, 1).tolist() == orders[3]
