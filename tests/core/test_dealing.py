"""Dealing: every sample of a slice to exactly one worker, and few of them moved."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.core.dealing import (
    deal,
    home_of,
    num_iterations,
    numpy_order,
    sizes_left,
    sizes_within,
)
from evenstep.core.limits import UNLIMITED
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
    order = numpy_order(num_samples, seed=3, epoch=1)
    length = num_iterations(num_samples, total, drop_last)
    slices = [order[k * total : (k + 1) * total] for k in range(length)]
    seen = sorted(i for part in slices for i in part.tolist())
    dropped = num_samples % total if drop_last else 0
    assert len(seen) == num_samples - dropped == len(set(seen))
    assert all(len(part) == total for part in slices[: num_samples // total])


def test_order_depends_on_seed_and_epoch():
    orders = [numpy_order(50, seed, epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(map(tuple, orders))) == 4
    assert numpy_order(50, 1, 1).tolist() == orders[3]


@pytest.mark.parametrize(
    ("sizes", "left", "caps", "least", "found"),
    [
        # No end in sight, or far enough away: the plan.
        ([6, 6], [UNLIMITED, UNLIMITED], UNLIMITED, 1, [6, 6]),
        ([6, 6], [7, UNLIMITED], UNLIMITED, 1, [6, 6]),
        ([6, 6], [6, 100], UNLIMITED, 2, [6, 6]),
        # The others carry the total, in proportion to the plan, as far as their caps allow.
        ([6, 6], [0, UNLIMITED], UNLIMITED, 1, [0, 12]),
        ([6, 4, 2], [0, UNLIMITED, UNLIMITED], UNLIMITED, 1, [0, 8, 4]),
        ([6, 4, 2], [0, UNLIMITED, UNLIMITED], 5, 1, [0, 5, 5]),
        # All that there is.
        ([6, 6], [2, 3], UNLIMITED, 1, [2, 3]),
        ([6, 6], [0, 0], UNLIMITED, 1, [0, 0]),
        # A benched worker carries the total only where nobody else can.
        ([12, 0], [5, UNLIMITED], UNLIMITED, 1, [5, 0]),
        ([12, 0], [0, UNLIMITED], UNLIMITED, 1, [0, 12]),
        # No batch, and no rest, is too small to be trained on.
        ([6, 6], [7, UNLIMITED], 6, 2, [5, 6]),
        ([2, 10], [3, UNLIMITED], UNLIMITED, 2, [3, 10]),
    ],
)
def test_sizes_are_those_of_the_plan_until_samples_run_out(sizes, left, caps, least, found):
    caps = np.full(len(sizes), caps)
    assert sizes_left(np.array(sizes), np.array(left), caps, least).tolist() == found


@given(st.data(), st.integers(1, 3))
def test_samples_of_workers_run_out_without_a_batch_or_rest_that_is_too_small(data, least):
    count = data.draw(st.integers(1, 5))
    left = np.array(data.draw(st.lists(st.integers(least, 60), min_size=count, max_size=count)))
    plans = st.lists(st.integers(0, 12), min_size=count, max_size=count).filter(
        lambda sizes: sum(sizes) >= least
    )
    caps = np.full(count, UNLIMITED)
    for _ in range(1000):
        if not left.any():
            break
        planned = np.array(data.draw(plans))
        planned = np.where((planned > 0) & (planned < least), least, planned)
        sizes = sizes_left(planned, left, caps, least)
        assert sizes.sum() >= 1 and np.all(sizes <= left)
        assert np.all((sizes == 0) | (sizes >= least))
        left = left - sizes
        assert np.all((left == 0) | (left >= least))
    assert not left.any()
