"""Gradient weights undo the mean of unequal batches."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.core import gradient_weight


def weights(sizes: list[int]) -> list[float]:
    return [gradient_weight(size, sum(sizes), len(sizes)) for size in sizes]


def test_gradient_weights_are_the_papers():
    assert weights([8, 0, 24, 32]) == [0.5, 0.0, 1.5, 2.0]


def test_nothing_weighs_nothing():
    assert gradient_weight(0, total=0) == 0


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20).filter(any))
def test_gradient_weights_average_to_one(sizes):
    assert np.isclose(np.mean(weights(sizes)), 1.0, rtol=1e-12)
    assert np.isclose(sum(gradient_weight(x, sum(sizes)) for x in sizes), 1.0, rtol=1e-12)


@given(st.data(), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_the_weighted_mean_over_workers_is_the_mean_over_samples(data, sizes):
    # Each worker's gradient is the mean over its own samples; the all-reduce takes their mean.
    total = sum(sizes)
    samples = data.draw(st.lists(st.floats(-10, 10), min_size=total, max_size=total))
    own = np.split(np.array(samples), np.cumsum(sizes)[:-1])
    reduced = np.mean([w * part.mean() for w, part in zip(weights(sizes), own, strict=True)])
    assert np.isclose(reduced, np.mean(samples), rtol=1e-9, atol=1e-9)
