"""`kalman`: one step by hand, and the learned effect of the driving resources."""

import math

import numpy as np
import pytest

from evenstep.predictors import Ema, Kalman


def learn(predictor, speeds, cpu, memory):
    """Teach one worker; return the predictions made before each observation."""
    predictions = []
    for row in np.broadcast(speeds, cpu, memory):
        speed, c, m = (np.array([float(value)]) for value in row)
        predictions.append(predictor.predict(c, m).item())
        predictor.observe(speed, c, m)
    return np.array(predictions)


def at(predictor, cpu=1.0, memory=1.0):
    return predictor.predict(np.array([cpu]), np.array([memory])).item()


def test_one_observation_makes_the_speed_proportional_to_the_cpu():
    kalman = Kalman(1)
    learn(kalman, [40.0], [0.5], [1.0])
    assert at(kalman, cpu=0.5) == pytest.approx(40.0, rel=1e-12)
    assert at(kalman, cpu=1.0) == pytest.approx(80.0, rel=1e-12)
    assert at(kalman, cpu=0.25) == pytest.approx(20.0, rel=1e-12)
    assert at(kalman, cpu=0.5, memory=0.05) == pytest.approx(40.0, rel=1e-12)


def test_second_observation_by_hand():
    """With c = m = 1 only the intercept moves: h = .05^2 + .01^2, S = h + .05^2, r = .1."""
    kalman = Kalman(1)
    learn(kalman, [100.0, 100.0 * math.exp(0.1)], 1.0, 1.0)
    gain = (0.05**2 + 0.01**2) / (0.05**2 + 0.01**2 + 0.05**2)
    assert at(kalman) == pytest.approx(100.0 * math.exp(0.1 * gain), rel=1e-12)


def test_outlier_is_cut_at_three_deviations_and_weighs_a_tenth():
    kalman = Kalman(1)
    learn(kalman, [100.0, 1e5], 1.0, 1.0)
    h = 0.05**2 + 0.01**2
    deviation = math.sqrt(h + 0.05**2)
    moved = 0.1 * 3 * deviation * h / deviation**2
    assert at(kalman) == pytest.approx(100.0 * math.exp(moved), rel=1e-12)


def test_speed_that_follows_the_cpu_is_predicted_from_the_second_iteration_on():
    rng = np.random.default_rng(0)
    cpu = rng.uniform(0.35, 1.0, 60)
    speeds = 90 * cpu**0.9
    predictions = learn(Kalman(1), speeds, cpu, 0.9)
    errors = np.abs(predictions / speeds - 1)
    assert errors[1:].max() < 0.08
    assert errors[20:].max() < 0.01
    ema = np.abs(learn(Ema(1), speeds, cpu, 0.9) / speeds - 1)
    assert errors[1:20].mean() < 0.2 * ema[1:20].mean()


def test_speed_that_does_not_follow_the_cpu_is_learned_too():
    rng = np.random.default_rng(0)
    cpu = rng.uniform(0.35, 1.0, 80)
    predictions = learn(Kalman(1), 60.0, cpu, 0.9)
    np.testing.assert_allclose(predictions[60:], 60.0, rtol=0.03)


def test_lack_of_memory_is_learned():
    """The swapping of scenario M: below 30 % of free memory the worker gets slower."""
    rng = np.random.default_rng(0)
    memory = rng.uniform(0.02, 1.0, 300)

    def speed(m):
        return 60.0 / (1 + 2 * np.maximum(0, 0.3 - m) / 0.3)

    kalman = Kalman(1)
    learn(kalman, speed(memory), 0.8, memory)
    for m in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.6, 1.0):
        assert at(kalman, 0.8, m) == pytest.approx(speed(m), rel=0.03)


def test_single_outlier_hardly_moves_the_prediction():
    rng = np.random.default_rng(0)
    kalman = Kalman(1)
    learn(kalman, 60.0 * np.exp(0.04 * rng.standard_normal(100)), 0.8, 0.8)
    before = at(kalman, 0.8, 0.8)
    learn(kalman, [6000.0], 0.8, 0.8)
    assert at(kalman, 0.8, 0.8) == pytest.approx(before, rel=0.02)
    learn(kalman, [0.6], 0.8, 0.8)
    assert at(kalman, 0.8, 0.8) == pytest.approx(before, rel=0.02)


@pytest.mark.parametrize("factor", [0.6, 1.6])
def test_jump_that_usage_does_not_explain_is_followed_within_ten_iterations(factor):
    rng = np.random.default_rng(0)
    noise = np.exp(0.04 * rng.standard_normal(120))
    speeds = 60.0 * np.where(np.arange(120) < 100, 1.0, factor) * noise
    predictions = learn(Kalman(1), speeds, rng.uniform(0.78, 0.82, 120), 0.8)
    np.testing.assert_allclose(predictions[:100][-5:], 60.0, rtol=0.05)
    np.testing.assert_allclose(predictions[110:], 60.0 * factor, rtol=0.1)


def test_workers_do_not_learn_from_each_other():
    rng = np.random.default_rng(0)
    cpu, memory = rng.uniform(0.3, 1.0, (2, 50, 2))
    speeds = np.array([30.0, 90.0]) * cpu
    both = Kalman(2)
    for row in zip(speeds, cpu, memory, strict=True):
        both.observe(*row)
    for i in (0, 1):
        alone = Kalman(1)
        learn(alone, speeds[:, i], cpu[:, i], memory[:, i])
        together = both.predict(np.array([0.6, 0.6]), np.array([0.2, 0.2]))[i]
        assert at(alone, 0.6, 0.2) == pytest.approx(together, rel=1e-12)
