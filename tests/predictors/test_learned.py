"""Levels: means that restart after a change of the speed."""

import numpy as np

from evenstep.predictors.learned import Levels

TRUE = np.array([True])


def after(levels, *values):
    for value in values:
        levels = levels.followed(np.array([value]) - levels.level, TRUE)
    return levels


def test_level_is_the_mean_of_what_was_observed():
    np.testing.assert_allclose(after(Levels.unknown(1), 4.0, 4.1, 4.2, 4.1).level, 4.1)


def test_level_of_a_training_moves_slowly():
    levels = after(Levels.found(np.array([4.0]), np.array([0.05])), 4.05)
    np.testing.assert_allclose(levels.level, 4.0005)


def test_lasting_change_is_taken_up_after_three_surprises():
    found = Levels.found(np.array([4.0]), np.array([0.05]))
    assert after(found, 5.0, 5.0).level < 4.1
    np.testing.assert_allclose(after(found, 5.0, 5.0, 5.0).level, 5.0)
    np.testing.assert_allclose(after(found, 3.0, 3.0, 3.0).level, 3.0)


def test_single_spike_is_not():
    found = Levels.found(np.array([4.0]), np.array([0.05]))
    assert abs(after(found, 5.0, 4.0, 4.0, 3.0, 4.0, 4.0, 5.0).level - 4.0) < 0.01


def test_worker_without_an_observation_keeps_its_level():
    levels = Levels.found(np.array([4.0, 5.0]), np.array([0.05, 0.05]))
    for _ in range(5):
        levels = levels.followed(np.array([0.5, 0.5]), np.array([True, False]))
    assert levels.level[0] > 4.4
    assert (levels.level[1], levels.rise[1], levels.age[1]) == (5.0, 0.0, 100)
