"""Thinning: medians of what is known."""

import numpy as np
import pytest

from evenstep.core.arrays import median


@pytest.mark.parametrize("shape", [(7, 5, 3), (8, 4), (9,)])
@pytest.mark.filterwarnings("ignore:All-NaN")
def test_median_leaves_out_what_is_unknown(shape):
    rng = np.random.default_rng(0)
    values = np.where(rng.uniform(size=shape) < 0.4, np.nan, rng.normal(size=shape))
    for axis in range(len(shape)):
        np.testing.assert_allclose(median(values, axis), np.nanmedian(values, axis=axis))
