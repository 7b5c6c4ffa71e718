"""The exact split: against brute force, against handing out unit by unit, and at its edges."""

from __future__ import annotations

import tracemalloc
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.core import Limits
from evenstep.core.split import (
    makespan,
    split_affine,
    split_monotone,
    split_proportional,
    water_level,
)
from evenstep.errors import InfeasibleLimits, InvalidSetting
from tests.figures import numbers_in


def finish(offsets, slopes, limits, sizes):
    """Return when each worker finishes, in the arithmetic of the split; 0 without samples."""
    g = limits.granularity
    return np.where(sizes > 0, offsets + (slopes * g) * (sizes // g), 0.0)


def unit_by_unit(total, offsets, slopes, limits):
    """Deal out the samples one granule at a time to the worker that finishes its next one first."""
    g = limits.granularity
    lo, hi = limits.bounds(total)
    sizes = lo.copy()
    while sizes.sum() < total:
        after = offsets + (slopes * g) * (sizes // g + 1)
        sizes[np.argmin(np.where(sizes < hi, after, np.inf))] += g
    return sizes


def least_makespan(total, offsets, slopes, limits):
    """Return the least of all makespans, by trying every composition of the total."""
    lo, hi = limits.bounds(total)
    ranges = [range(a, b + 1, limits.granularity) for a, b in zip(lo, hi, strict=True)]
    sizes = np.array([x for x in product(*ranges) if sum(x) == total])
    return finish(offsets, slopes, limits, sizes).max(axis=1).min()


def assert_exact(total, offsets, slopes, limits, sizes):
    """Check that no exchange of units helps, ties to the lower worker; for large cases.

    The units handed out are those that finish earliest: the last of them comes before the
    first that was not, by finish time and then by worker.
    """
    lo, hi = limits.bounds(total)
    g = limits.granularity
    assert int(sizes.sum()) == total
    assert np.all((lo <= sizes) & (sizes <= hi) & (sizes % g == 0))
    worker = np.arange(len(sizes))
    last = offsets + (slopes * g) * (sizes // g)
    following = offsets + (slopes * g) * (sizes // g + 1)
    handed_out = sorted(zip(last[sizes > lo], worker[sizes > lo], strict=True))
    left = sorted(zip(following[sizes < hi], worker[sizes < hi], strict=True))
    if handed_out and left:
        assert handed_out[-1] <= left[0]


# Whole numbers tie often; powers of ten and everything between them spread widely.
rates = st.one_of(
    st.integers(1, 6).map(float),
    st.integers(-9, 9).map(lambda e: 10.0**e),
    st.floats(1e-3, 1e3),
)
overheads = st.one_of(st.integers(0, 9).map(float), st.floats(0, 1e3))


@st.composite
def cases(draw, most_workers=6, most_units=20):
    """Draw a total, curves and limits that at least one plan satisfies."""
    n = draw(st.integers(1, most_workers))
    g = draw(st.sampled_from([1, 1, 1, 2, 3]))
    units = draw(st.integers(0, most_units))
    cuts = sorted(draw(st.lists(st.integers(0, units), min_size=n - 1, max_size=n - 1)))
    some = g * np.diff([0, *cuts, units])
    slack = draw(st.lists(st.integers(0, 3 * g), min_size=2 * n, max_size=2 * n))
    limits = Limits(np.maximum(some - slack[:n], 0), some + slack[n:], g)
    offsets = np.array(draw(st.lists(overheads, min_size=n, max_size=n)))
    slopes = np.array(draw(st.lists(rates, min_size=n, max_size=n)))
    return g * units, offsets, slopes, limits


@given(cases(most_workers=4, most_units=9))
def test_no_composition_finishes_earlier(case):
    _, offsets, slopes, limits = case
    sizes = split_affine(*case)
    assert finish(offsets, slopes, limits, sizes).max() == least_makespan(*case)


@settings(max_examples=300)
@given(cases())
def test_the_split_is_what_handing_out_unit_by_unit_gives(case):
    sizes = split_affine(*case)
    assert sizes.dtype == np.int64
    assert sizes.tolist() == unit_by_unit(*case).tolist()


@settings(max_examples=300)
@given(cases())
def test_the_proportional_split_is_the_affine_one_without_overhead(case):
    total, _, speeds, limits = case
    sizes = split_proportional(total, speeds, limits)
    assert sizes.tolist() == unit_by_unit(total, 0 * speeds, 1.0 / speeds, limits).tolist()


@settings(max_examples=300)
@given(cases(most_units=2000))
def test_total_limits_and_granularity_are_kept(case):
    total, offsets, slopes, limits = case
    assert_exact(total, offsets, slopes, limits, split_affine(*case))


@given(cases(), st.floats(0.01, 100.0))
def test_a_monotone_split_of_lines_is_the_affine_one(case, guess):
    total, offsets, slopes, limits = case

    def largest(level):
        within = np.floor(np.minimum((level - offsets) / slopes, 1e6)).astype(np.int64)
        # Undo what rounding errors of the division did.
        within -= offsets + slopes * within > level
        return within + (offsets + slopes * (within + 1) <= level)

    sizes = split_monotone(total, largest, limits, guess)
    lo, hi = limits.bounds(total)
    assert int(sizes.sum()) == total
    assert np.all((lo <= sizes) & (sizes <= hi) & (sizes % limits.granularity == 0))
    found, exact = (
        makespan(x, offsets, slopes) for x in (sizes, split_affine(total, offsets, slopes, limits))
    )
    assert found == pytest.approx(exact, rel=1e-9)


def test_a_monotone_split_may_have_steps():
    # Whole granules of 4 samples take as long as part of one: t = ceil(x / 4) / v.
    speeds = np.array([1.0, 3.0])
    sizes = split_monotone(
        20, lambda level: (4 * np.floor(level * speeds + 1e-9)).astype(int), Limits.of(2, 0)
    )
    assert sizes.tolist() == [4, 16]


@pytest.mark.parametrize(
    ("total", "offsets", "slopes", "limits", "expected"),
    [
        # Ties go to the lower worker.
        (11, [0, 0, 0], [1, 1, 1], Limits.of(3), [4, 4, 3]),
        (3, [0, 0], [1, 0.5], Limits.of(2), [1, 2]),
        (5, [0, 0], [1, 0.5], Limits.of(2), [2, 3]),
        (3, [2, 0], [1, 1], Limits.of(2, 0), [1, 2]),
        # A cap binds, and the remainder is dealt out by the same rule.
        (12, [0, 0, 0], [1, 1, 1], Limits.of(3, cap=[2, 99, 99]), [2, 5, 5]),
        # A minimum binds though it makes that worker the slowest.
        (12, [0, 0, 9], [1, 1, 1], Limits.of(3, minimum=[1, 1, 4]), [4, 4, 4]),
        # Without a minimum, a worker that is late with its first sample gets none.
        (12, [0, 0, 9], [1, 1, 1], Limits.of(3, minimum=0), [6, 6, 0]),
        # Nothing is left to decide.
        (9, [5, 0, 1], [1, 2, 3], Limits(np.array([4, 3, 2]), np.array([4, 3, 2])), [4, 3, 2]),
        (9, [0, 0, 0], [1, 2, 3], Limits.of(3, cap=[2, 3, 4]), [2, 3, 4]),
        (9, [0, 0, 0], [1, 2, 3], Limits.of(3, minimum=[4, 3, 2]), [4, 3, 2]),
        (7, [3], [2], Limits.of(1), [7]),
        (0, [1, 2], [1, 1], Limits.of(2, minimum=0), [0, 0]),
        # Whole granules.
        (40, [0, 0, 0], [1, 0.25, 0.25], Limits.of(3, granularity=8), [8, 16, 16]),
        # Speeds so far apart that only the limits give the slow one anything.
        (1000, [0, 0], [1e12, 1e-12], Limits.of(2), [1, 999]),
        (1000, [0, 0], [1e12, 1e-12], Limits.of(2, minimum=0), [0, 1000]),
        (1000, [0, 0], [1e12, 1e-12], Limits.of(2, cap=990), [10, 990]),
        # Overheads that drown the slopes in rounding errors: only who has the lower one works.
        (1000, [1e9, 1e9 + 1], [1e-6, 1e-6], Limits.of(2), [999, 1]),
        (1000, [1e15, 0.0], [1.0, 1.0], Limits.of(2, minimum=0), [0, 1000]),
        (6, [-1.0, -3.0], [1.0, 1.0], Limits.of(2, minimum=0), [2, 4]),
    ],
)  # fmt: skip
def test_splits_worked_out_by_hand(total, offsets, slopes, limits, expected):
    sizes = split_affine(total, np.array(offsets, float), np.array(slopes, float), limits)
    assert sizes.tolist() == expected


@pytest.mark.parametrize("samples", [1, 4, 32, 1000])
def test_ten_thousand_workers_get_exactly_the_total(samples):
    rng = np.random.default_rng(samples)
    n = 10_000
    slopes, offsets = 30.0 ** -rng.random(n), rng.uniform(0, 5, n)
    limits = Limits(rng.integers(0, 2, n), rng.integers(samples, 4 * samples + 1, n))
    total = samples * n
    assert_exact(total, offsets, slopes, limits, split_affine(total, offsets, slopes, limits))
    speeds = 1.0 / slopes
    sizes = split_proportional(total, speeds, limits)
    assert_exact(total, np.zeros(n), 1.0 / speeds, limits, sizes)


@pytest.mark.parametrize(
    ("total", "offsets", "slopes", "cap", "expected"),
    [
        (180, [0, 0, 0], [2e-8, 7e-8, 6e7], [90, 50, 90], [90, 50, 40]),
        (330, [0, 0, 0], [2e-7, 3e-6, 4e7], [50, 100, 230], [50, 100, 180]),
        (560, [0.1, 0.04, 0.3], [0.06, 2e5, 1e-9], [240, 210, 130], [240, 190, 130]),
        (659, [6e8, 0.2, 0.1], [1e-10, 9e6, 2e-9], [210, 240, 250], [210, 199, 250]),
    ],
)
def test_what_full_fast_workers_leave_is_not_lost_in_rounding(
    total, offsets, slopes, cap, expected
):
    # Running sums of 1 / slope, in which the fast ones drown the slow one, gave too large a sum.
    sizes = split_affine(total, np.array(offsets), np.array(slopes), Limits.of(3, cap=cap))
    assert sizes.tolist() == expected


@pytest.mark.parametrize(
    ("total", "offset", "slopes", "expected"),
    [
        # Rounded down at the level itself, the sizes would add up to more than the total.
        (5, 1e11, [1e-5, 1e-5], [3, 2]),
        (7, 1e11, [3e-5, 1e-5], [2, 5]),
        # And here a unit would go to the worker that finishes it later.
        (6, 1e11, [1e-5, 2e-5], [5, 1]),
        (6, 1e13, [1e-3, 1e-3], [4, 2]),
        (7, 1e13, [3e-3, 1e-3, 1e-3], [1, 4, 2]),
    ],
)
def test_level_that_rounding_carries_too_far_hands_out_nothing(total, offset, slopes, expected):
    # A unit takes about as long as the last bit of the overhead.
    limits = Limits.of(len(slopes), minimum=0)
    case = total, np.full(len(slopes), offset), np.array(slopes), limits
    assert split_affine(*case).tolist() == unit_by_unit(*case).tolist() == expected


def test_one_very_late_worker_does_not_make_the_split_large():
    # Its overhead once was the rounding error of all, and the candidates took 23 GiB.
    n = 10_000
    offsets = np.where(np.arange(n) == 5, 1e12, 1.0)
    slopes = 0.01 * np.exp(np.random.default_rng(0).standard_normal(n))
    tracemalloc.start()
    sizes = split_affine(32 * n, offsets, slopes, Limits.of(n))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6
    assert sizes[5] == 1
    assert_exact(32 * n, offsets, slopes, Limits.of(n), sizes)


def test_ten_thousand_equal_workers_tie_in_their_order():
    sizes = split_proportional(320_007, np.full(10_000, 0.1), Limits.of(10_000))
    assert sizes.tolist() == [33] * 7 + [32] * 9_993


def test_inputs_are_not_changed():
    offsets, slopes = np.array([0.0, 3.0]), np.array([1.0, 2.0])
    limits = Limits.of(2)
    for array in (offsets, slopes, limits.minimum, limits.cap):
        array.setflags(write=False)
    assert split_affine(10, offsets, slopes, limits).tolist() == [8, 2]
    assert split_proportional(10, slopes, limits).tolist() == [3, 7]
    assert (offsets.tolist(), slopes.tolist()) == ([0.0, 3.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("total", "limits", "what", "numbers"),
    [
        (5, Limits.of(2, minimum=3), "minimum", [2, 6, 5]),
        (5, Limits.of(2, cap=2), "caps", [2, 4, 5]),
        (5, Limits.of(2, granularity=2), "granularity", [2, 5]),
    ],
)
def test_infeasible_limits_are_an_error_and_never_a_wrong_sum(total, limits, what, numbers):
    splits = (
        lambda: split_proportional(total, np.ones(2), limits),
        lambda: split_affine(total, np.zeros(2), np.ones(2), limits),
        lambda: split_monotone(total, lambda level: np.full(2, int(level)), limits),
    )
    for split in splits:
        with pytest.raises(InfeasibleLimits, match=what) as caught:
            split()
        assert numbers_in(str(caught.value)) == numbers


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.0, -2.0])
def test_speeds_that_cannot_be_are_refused(bad):
    values = np.array([1.0, bad])
    with pytest.raises(InvalidSetting, match=rf"^speed .* {bad} for worker 1$"):
        split_proportional(4, values, Limits.of(2))
    with pytest.raises(InvalidSetting, match=rf"^slope .* {bad} for worker 1$"):
        split_affine(4, np.zeros(2), values, Limits.of(2))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_offsets_that_cannot_be_are_refused(bad):
    with pytest.raises(InvalidSetting, match=rf"^offset .* {bad} for worker 0$"):
        split_affine(4, np.array([bad, 0.0]), np.ones(2), Limits.of(2))


def test_the_makespan_does_not_count_workers_without_samples():
    offsets, slopes = np.array([1.0, 50.0]), np.array([2.0, 1.0])
    assert makespan(np.array([3, 0]), offsets, slopes) == 7.0
    assert makespan(np.array([3, 1]), offsets, slopes) == 51.0
    assert makespan(np.array([0, 0]), offsets, slopes) == 0.0


@given(cases())
def test_at_the_water_level_the_real_valued_sizes_add_up(case):
    total, offsets, slopes, limits = case
    lo, hi = limits.bounds(total)
    level = water_level(total, offsets, slopes, lo, hi)
    sizes = np.clip((level - offsets) / slopes, lo, hi)
    # The level is that exact; how many samples that is depends on the slopes.
    tolerance = 1e-9 * (1 + max(abs(level), offsets.max()) / slopes.min())
    assert sizes.sum() == pytest.approx(total, abs=tolerance)


def largest_remainder(total, speeds):
    wanted = total * speeds / speeds.sum()
    sizes = np.floor(wanted).astype(np.int64)
    first = np.argsort(sizes - wanted, kind="stable")[: total - int(sizes.sum())]
    sizes[first] += 1
    return sizes


@pytest.mark.parametrize(
    ("spread", "samples", "least_loss"),
    [(3, 4, 0.03), (3, 32, 0.004), (30, 4, 0.25), (30, 32, 0.04)],
)
def test_rounding_by_largest_remainder_is_clearly_worse(spread, samples, least_loss):
    # algorithms.md: 6 % at 4 samples per worker, 0.8 % at 32; 51 % and 6 % when 30-fold.
    losses = []
    for seed in range(100):
        speeds = spread ** np.random.default_rng(seed).random(32)
        total = 32 * samples
        ours = split_proportional(total, speeds, Limits.of(32, minimum=0))
        theirs = largest_remainder(total, speeds)
        assert theirs.sum() == ours.sum() == total
        losses.append(np.max(theirs / speeds) / np.max(ours / speeds) - 1)
    assert min(losses) >= 0.0
    assert np.mean(losses) > least_loss
