"""Advice to remove a worker: given exactly if the job is faster without it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.core import Advice, Limits
from evenstep.core.split import makespan, split_affine
from evenstep.policies.removal import WORTHWHILE, advise_removal


def advise(total, offsets, slopes, limits):
    offsets, slopes = np.array(offsets, float), np.array(slopes, float)
    sizes = split_affine(total, offsets, slopes, limits)
    return advise_removal(total, offsets, slopes, sizes, limits)


def test_an_overhead_longer_than_the_others_need_is_advised_against():
    # (4, 3, 1) takes 10 s, (4, 4) without the last worker 4 s.
    assert advise(8, [0, 0, 9], [1, 1, 1], Limits.of(3)) == (Advice(2, 4.0, "remove"),)


def test_a_slow_worker_that_still_helps_is_kept():
    # One sample in 3 s: (4, 3, 1) takes 4 s, and without it (4, 4) does too.
    assert advise(8, [0, 0, 2], [1, 1, 1], Limits.of(3)) == ()
    assert advise(9, [0, 0, 3], [1, 1, 1], Limits.of(3)) == ()


def test_who_would_be_let_off_lightly_is_kept():
    # 4.04 s with it, 4 s without: less than the 1 % that is worth it.
    assert advise(8, [0, 0, 3.04], [1, 1, 1], Limits.of(3)) == ()
    assert advise(8, [0, 0, 3.05], [1, 1, 1], Limits.of(3)) == (Advice(2, 4.0),)


def test_a_minimum_that_delays_all_workers_is_advised_against():
    # 4 samples of a worker that needs 2 s for each: 8 s, against 6 s without it.
    assert advise(12, [0, 0, 0], [1, 1, 2], Limits.of(3, minimum=4)) == (Advice(2, 6.0),)
    assert advise(12, [0, 0, 0], [1, 1, 2], Limits.of(3)) == ()


def test_who_the_others_cannot_do_without_is_kept():
    assert advise(8, [0, 0, 9], [1, 1, 1], Limits.of(3, cap=[3, 4, 8])) == ()
    assert advise(8, [50], [1], Limits.of(1)) == ()


def test_who_has_no_samples_is_not_advised_against():
    offsets, slopes = np.array([0.0, 0.0, 9.0]), np.ones(3)
    assert advise_removal(8, offsets, slopes, np.array([4, 4, 0]), Limits.of(3, minimum=0)) == ()


def test_the_smallest_size_of_who_works_is_one_granule():
    # 4.05 s for its one sample, though 3 s for none.
    offsets, slopes, sizes = np.array([0.0, 0.0, 3.0]), np.array([1, 1, 1.05]), np.array([4, 3, 1])
    limits = Limits.of(3, minimum=0)
    assert advise_removal(8, offsets, slopes, sizes, limits) == (Advice(2, 4.0),)


def test_one_worker_is_advised_against_at_a_time():
    # Without the slowest, the next one still delays the others.
    assert advise(8, [0, 0, 9, 20], [1, 1, 1, 1], Limits.of(4)) == (Advice(3, 10.0),)


numbers = st.floats(0.1, 20.0)


@given(
    total=st.integers(6, 60),
    curves=st.lists(st.tuples(st.one_of(st.just(0.0), numbers), numbers), min_size=2, max_size=5),
    minimum=st.integers(1, 2),
    granularity=st.integers(1, 2),
)
def test_advice_is_what_trying_every_removal_finds(total, curves, minimum, granularity):
    total = 2 * max(total, len(curves))
    offsets, slopes = (np.array(column) for column in zip(*curves, strict=True))
    n = len(curves)
    limits = Limits.of(n, minimum, granularity=granularity)
    kept = makespan(split_affine(total, offsets, slopes, limits), offsets, slopes)
    without = {}
    for worker in range(n):
        rest = np.flatnonzero(np.arange(n) != worker)
        sizes = split_affine(total, offsets[rest], slopes[rest], limits.select(rest))
        without[worker] = makespan(sizes, offsets[rest], slopes[rest])
    advice = advise(total, offsets, slopes, limits)
    best = min(without, key=without.__getitem__)
    if without[best] < (1 - WORTHWHILE) * kept * (1 - 1e-9):
        assert [(a.worker, a.predicted_time) for a in advice] == [
            (best, pytest.approx(without[best]))
        ]
    elif without[best] > (1 - WORTHWHILE) * kept * (1 + 1e-9):
        assert advice == ()
