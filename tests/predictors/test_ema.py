"""`ema` and `memoryless`, by hand."""

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.predictors import Ema, make_predictor

FULL = np.ones(2)


def after(predictor, *speeds):
    for row in speeds:
        predictor.observe(np.array(row), FULL, FULL)
    return predictor.predict(FULL, FULL).tolist()


def test_mean_starts_at_the_first_speed_and_moves_by_alpha():
    ema = Ema(2)
    assert after(ema, [10.0, 50.0]) == [10.0, 50.0]
    assert after(ema, [20.0, 50.0]) == [12.0, 50.0]
    assert after(ema, [2.0, 100.0]) == [10.0, 60.0]


def test_usage_does_not_matter():
    ema = Ema(2)
    after(ema, [10.0, 50.0])
    assert ema.predict(0.1 * FULL, 0.2 * FULL).tolist() == [10.0, 50.0]


def test_memoryless_predicts_the_last_speed():
    assert after(make_predictor("memoryless", 2), [10.0, 50.0], [3.0, 70.0]) == [3.0, 70.0]


def test_memoryless_goes_on_with_the_last_speed_there_was():
    assert after(make_predictor("memoryless", 2), [10.0, 50.0], [np.nan, 70.0]) == [10.0, 70.0]


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.1, float("nan")])
def test_weight_outside_its_range_is_refused(alpha):
    with pytest.raises(InvalidSetting, match=r"alpha of ema must be in \(0, 1\]"):
        Ema(2, alpha=alpha)
