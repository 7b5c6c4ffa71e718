"""Dealing by counts: every sample to exactly one worker, and counts that follow the plan."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.core.counts import deal_by_counts

sizes_lists = st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(any)


def shares_of(owners, counts, sizes):
    return np.bincount(owners, weights=counts, minlength=len(sizes))


def finish(owners, counts, sizes):
    """Return when the last worker finishes, relative to when all would finish together."""
    wanted = sizes / sizes.sum() * counts.sum()
    return float((shares_of(owners, counts, sizes)[sizes > 0] / wanted[sizes > 0]).max())


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
def test_nobody_gets_a_whole_sample_too_much(sizes, seed):
    sizes = np.array(sizes)
    counts = np.random.default_rng(seed).integers(1, 500, sizes.sum())
    shares = shares_of(deal_by_counts(counts, sizes, minimum=0), counts, sizes)
    wanted = sizes / sizes.sum() * counts.sum()
    # Where everybody must have a sample, the last ones are not given by need.
    assert (shares - wanted < 2 * counts.max()).all()


def all_dealings(length, num_workers):
    """Yield every way to deal samples such that everybody has one."""
    for owners in itertools.product(range(num_workers), repeat=length):
        if len(set(owners)) == num_workers:
            yield np.array(owners)


def contiguous_dealings(length, num_workers):
    for cuts in itertools.combinations(range(1, length), num_workers - 1):
        yield np.repeat(np.arange(num_workers), np.diff([0, *cuts, length]))


@pytest.mark.parametrize("sizes", [(4, 4), (2, 6), (3, 3, 3), (1, 3, 5)], ids=str)
def test_dealing_is_nearly_the_best_of_all(sizes):
    sizes = np.array(sizes)
    draw = np.random.default_rng(1)
    ours, best, pieces = [], [], []
    for _ in range(12):
        # A few long samples among many short ones, as texts have them.
        counts = np.ceil(draw.lognormal(3, 1, sizes.sum())).astype(np.int64)
        ways = [finish(o, counts, sizes) for o in all_dealings(len(counts), len(sizes))]
        cut = [finish(o, counts, sizes) for o in contiguous_dealings(len(counts), len(sizes))]
        ours.append(finish(deal_by_counts(counts, sizes), counts, sizes))
        best.append(min(ways))
        pieces.append(min(cut))
        assert ours[-1] >= best[-1]
    assert np.mean(ours) <= 1.12 * np.mean(best)
    # Better than the best cut into pieces, which no small change is made for.
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
    # The small change of four workers, and what lies across a cut.
    assert (before != after).sum() <= 4 * (1 + 4) + 6
