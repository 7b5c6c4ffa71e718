"""`rnn` and `lstm`: predictions from the last two speeds only."""

import numpy as np
import pytest

from evenstep.predictors.ema import Ema
from evenstep.predictors.recurrent import make_lstm, make_rnn
from tests.predictors.examples import QUICK, assert_same_state, follow_cpu, teach

MAKERS = pytest.mark.parametrize("make", [make_rnn, make_lstm])


def alternating(num_iterations, seed=0):
    """Return speeds that go up and down from one iteration to the next, and the usage."""
    rng = np.random.default_rng(seed)
    swing = np.where(np.arange(num_iterations) % 2, 1.3, 0.7)[:, None]
    speeds = np.array([60.0, 90.0]) * swing * np.exp(0.02 * rng.standard_normal((len(swing), 2)))
    return speeds, np.ones_like(speeds), np.ones_like(speeds)


@MAKERS
def test_inputs_are_the_last_two_speeds_oldest_first(make):
    series = np.array([[10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]]).T.astype(float)
    assert make(1).form.inputs(series[None]).tolist() == [[[10, 11], [11, 12]]]


@MAKERS
def test_pattern_of_the_last_two_speeds_is_learned(make):
    speeds, cpu, memory = alternating(140)
    predictions = teach(make(2, **QUICK), speeds, cpu, memory)
    np.testing.assert_allclose(predictions[-20:], speeds[-20:], rtol=0.15)


@MAKERS
def test_ema_predicts_until_the_first_training(make):
    runs = [teach(predictor, *alternating(50)) for predictor in (make(2, **QUICK), Ema(2))]
    np.testing.assert_array_equal(*runs)


@MAKERS
def test_usage_does_not_matter(make):
    predictor = make(2, **QUICK)
    teach(predictor, *follow_cpu(100, [60.0, 90.0]))
    assert predictor.trained.all()
    np.testing.assert_array_equal(
        predictor.predict(np.full(2, 0.1), np.full(2, 0.2)),
        predictor.predict(np.full(2, 0.9), np.full(2, 0.8)),
    )


@MAKERS
def test_restored_models_predict_from_the_start(make):
    old, new = make(2, **QUICK), make(2, **QUICK)
    teach(old, *alternating(100))
    new.restore(old.state())
    assert_same_state(new.state(), old.state())
    np.testing.assert_array_equal(
        teach(new, *alternating(30, seed=1)), teach(old, *alternating(30, seed=1))
    )
