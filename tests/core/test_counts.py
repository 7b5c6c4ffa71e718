"""Dealing by counts: every sample to exactly one worker, and counts that follow the plan."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.core.dealing import deal_by_counts

sizes_lists = st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(any)


def shares_of(owners, counts, sizes):
    return np.bincount(owners, weights=counts, minlength=len(sizes))


def finish(owners, counts, sizes):
    """Return when the last worker finishes, relative to when all would finish together."""
    return float(earliest_finish(owners[None, :], counts, sizes))


def earliest_finish(dealings, counts, sizes):
    """Return the same for the best of many dealings, one per row."""
    wanted = sizes / sizes.sum() * counts.sum()
    relative = [(dealings == i) @ counts / wanted[i] for i in np.flatnonzero(sizes)]
    return np.max(relative, axis=0).min()


@given(sizes_lists, st.integers(0, 3), st.data())
def test_every_sample_is_dealt_and_the_minimum_kept(sizes, minimum, data):
    sizes = np.array(sizes)
    sizes[sizes > 0] = np.maximum(sizes[sizes > 0], minimum)
    length = int(sizes.sum())
    counts = np.array(data.draw(st.lists(st.integers(1, 500), min_size=length, max_size=length)))
    owners = deal_by_counts(counts, sizes, minimum)
    dealt = np.bincount(owners, minlength=len(sizes))
    assert len(owners) == dealt.sum() == length
    assert (dealt[sizes > 0] >= max(minimum, 1)).all()
    assert (dealt[sizes == 0] == 0).all()


@given(sizes_lists, st.integers(1, 9))
def test_samples_of_equal_counts_are_dealt_as_planned(sizes, count):
    sizes = np.array(sizes)
    owners = deal_by_counts(np.full(sizes.sum(), count), sizes)
    assert np.bincount(owners, minlength=len(sizes)).tolist() == sizes.tolist()


@given(sizes_lists, st.integers(0, 99))
def test_nobody_gets_two_samples_too_many(sizes, seed):
    sizes = np.array(sizes)
    counts = np.random.default_rng(seed).integers(1, 500, sizes.sum())
    shares = shares_of(deal_by_counts(counts, sizes, minimum=0), counts, sizes)
    wanted = sizes / sizes.sum() * counts.sum()
    # Not always less than one: where every worker must have a sample, the last are not by need.
    assert (shares - wanted < 2 * counts.max()).all()


def all_dealings(length, num_workers):
    """Return every way to deal samples such that every worker has one, one per row."""
    ways = itertools.product(range(num_workers), repeat=length)
    return np.array([owners for owners in ways if len(set(owners)) == num_workers])


def contiguous_dealings(length, num_workers):
    """Return every way to deal them in one piece per worker."""
    ways = itertools.combinations(range(1, length), num_workers - 1)
    pieces = [np.diff([0, *cuts, length]) for cuts in ways]
    return np.array([np.repeat(np.arange(num_workers), piece) for piece in pieces])


@pytest.mark.parametrize("sizes", [(4, 4), (2, 6), (3, 3, 3), (1, 3, 5)], ids=str)
def test_dealing_is_nearly_the_best_of_all(sizes):
    sizes = np.array(sizes)
    draw = np.random.default_rng(1)
    every = all_dealings(sizes.sum(), len(sizes))
    cut = contiguous_dealings(sizes.sum(), len(sizes))
    ours, best, pieces = [], [], []
    for _ in range(12):
        # A few long samples among many short ones, as texts have them.
        counts = np.ceil(draw.lognormal(3, 1, sizes.sum())).astype(np.int64)
        ours.append(finish(deal_by_counts(counts, sizes), counts, sizes))
        best.append(earliest_finish(every, counts, sizes))
        pieces.append(earliest_finish(cut, counts, sizes))
        assert ours[-1] >= best[-1]
    assert np.mean(ours) <= 1.1 * np.mean(best)
    # Better than the best cut into one piece per worker.
    assert np.mean(ours) < np.mean(pieces)


def test_counts_of_a_usual_batch_follow_the_plan_closely():
    draw = np.random.default_rng(2)
    sizes = np.array([6, 10, 18, 30])
    for _ in range(20):
        counts = np.minimum(np.ceil(draw.lognormal(4, 0.8, 64)), 512).astype(np.int64)
        assert finish(deal_by_counts(counts, sizes), counts, sizes) < 1.02


def test_small_change_of_the_plan_moves_few_samples():
    draw = np.random.default_rng(3)
    counts = draw.integers(1, 200, 256)
    before = deal_by_counts(counts, np.array([64, 64, 64, 64]))
    after = deal_by_counts(counts, np.array([63, 65, 64, 64]))
    # Those at the three cuts, and small ones that make up for them.
    assert (before != after).mean() <= 0.1
