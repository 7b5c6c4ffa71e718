"""Curves: times against batch sizes, and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.curves import Curves, affine, linear, table

SIZES = np.arange(0, 200)


def times_of(points, sizes=SIZES):
    """The times of one curve at many sizes: as many workers, all with that curve."""
    return Curves.of([points] * len(sizes)).times_at(np.asarray(sizes))


def sizes_of(points, times):
    return Curves.of([points] * len(times)).largest_within(np.asarray(times))


def test_linear_is_size_over_speed():
    np.testing.assert_allclose(times_of(linear(50.0)), SIZES / 50.0)


def test_affine_is_constant_until_saturated():
    np.testing.assert_allclose(
        times_of(affine(0.2, 0.01, saturation=24)), 0.2 + 0.01 * np.maximum(SIZES, 24)
    )


def test_affine_without_saturation_begins_at_its_overhead():
    np.testing.assert_allclose(times_of(affine(0.2, 0.01)), 0.2 + 0.01 * SIZES)


def test_table_goes_through_its_points_and_straight_between_them():
    points = [(16, 0.1), (32, 0.18), (64, 0.5)]
    times = times_of(table(points), [16, 24, 32, 40, 64])
    np.testing.assert_allclose(times, [0.1, 0.14, 0.18, 0.26, 0.5])


def test_table_is_flat_before_its_first_point():
    np.testing.assert_allclose(times_of(table([(16, 0.1), (32, 0.2)]), [0, 1, 15]), 0.1)


def test_table_may_start_at_zero():
    np.testing.assert_allclose(times_of(table([(0, 0.0), (10, 0.5)]), [0, 1, 10]), [0, 0.05, 0.5])


def test_table_is_extended_with_its_last_slope():
    times = times_of(table([(16, 0.1), (32, 0.2), (64, 0.8)]), [64, 96])
    np.testing.assert_allclose(times, [0.8, 1.4])


def test_table_that_ends_level_is_extended_with_its_average_slope():
    times = times_of(table([(10, 0.1), (20, 0.3), (30, 0.3)]), [30, 40])
    np.testing.assert_allclose(times, [0.3, 0.4])


def test_table_raises_a_time_below_an_earlier_one():
    times = times_of(table([(10, 0.2), (20, 0.4), (30, 0.3), (40, 0.6)]), [20, 30, 35, 40])
    np.testing.assert_allclose(times, [0.4, 0.4, 0.5, 0.6])


def test_largest_within_is_the_end_of_a_level_piece():
    points = table([(10, 0.2), (20, 0.2), (30, 0.4)])
    np.testing.assert_allclose(sizes_of(points, [0.1, 0.2, 0.3]), [-1, 20, 25])
    np.testing.assert_allclose(sizes_of(affine(0.2, 0.01, 30), [0.49, 0.5, 0.51]), [-1, 30, 31])


def test_curves_of_unlike_workers_do_not_mix():
    curves = Curves.of([linear(10.0), affine(1.0, 0.5, 4), table([(1, 0.1), (2, 0.3), (4, 0.4)])])
    np.testing.assert_allclose(curves.times_at(np.array([5, 2, 3])), [0.5, 3.0, 0.35])
    np.testing.assert_allclose(curves.largest_within(np.array([0.5, 2.9, 0.35])), [5, -1, 3])


positive = st.floats(0.001, 10.0)
curves = st.one_of(
    st.builds(linear, st.floats(0.1, 1000.0)),
    st.builds(affine, st.floats(0, 10.0), positive, st.integers(0, 100)),
    st.lists(st.tuples(st.integers(1, 50), positive), min_size=2, max_size=8).map(
        lambda steps: table(list(zip(*np.cumsum(steps, axis=0).T.tolist(), strict=True)))
    ),
)


@given(curves)
def test_times_never_fall_as_the_batch_grows(points):
    assert np.all(np.diff(times_of(points)) >= -1e-12)


@given(curves)
def test_largest_within_is_the_inverse_of_times_at(points):
    times = times_of(points)
    largest = sizes_of(points, times)
    np.testing.assert_allclose(times_of(points, largest), times, rtol=1e-9)
    assert np.all(largest >= SIZES - 1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: linear(0.0), "speed must be finite and > 0, got 0.0"),
        (lambda: linear(np.inf), "speed must be finite and > 0, got inf"),
        (lambda: linear(np.nan), "speed must be finite and > 0, got nan"),
        (lambda: affine(0.1, -1.0), "per_sample must be finite and > 0, got -1.0"),
        (lambda: affine(0.1, 1.0, -1), "saturation must be finite and >= 0, got -1"),
        (lambda: affine(-1, 1.0), "overhead must be finite and leave every time > 0, got -1"),
        (lambda: affine(-8, 1.0, 8), "overhead must be finite and leave every time > 0, got -8"),
        (lambda: affine(np.inf, 1.0), "overhead must be finite and leave every time > 0, got inf"),
        (lambda: table([(1, 0.1)]), "a table must have at least 2 rows, got 1"),
        (lambda: table([(2, 1), (2, 2)]), "batch_size must rise from row to row, got 2 in row 1"),
        (lambda: table([(-2, 1), (2, 2)]), "batch_size must be finite and >= 0, got -2 in row 0"),
        (lambda: table([(1, 1), (2, 0)]), "seconds must be finite and > 0, got 0 in row 1"),
        (lambda: table([(1, 1), (2, 0.5)]), "seconds must rise, got none above the first 1"),
    ],
)
def test_an_invalid_curve_is_refused(make, message):
    with pytest.raises(InvalidSetting) as caught:
        make()
    assert str(caught.value) == message


def test_a_curve_too_flat_for_floating_point_is_refused():
    with pytest.raises(InvalidSetting, match=r"^a curve .*rising, got 0\.0 seconds per sample$"):
        affine(1.0, 1e-20)
