"""Levenberg-Marquardt with early stopping and hold."""

import numpy as np
import pytest

from evenstep.predictors.fitting import TrainingSamples, fit, set_aside
from evenstep.predictors.networks import FeedForward

NETWORK = FeedForward(num_inputs=2, hidden=3)


def make_samples(num_workers=3, num_samples=200, noise=0.0, seed=0):
    """Return noisy outputs of random networks of the same form, and those networks."""
    rng = np.random.default_rng(seed)
    truth = np.array([NETWORK.init(rng) for _ in range(num_workers)]) / 2
    inputs = rng.uniform(-1, 1, (num_workers, num_samples, 2))
    targets = NETWORK.output(truth, inputs) + noise * rng.standard_normal(inputs.shape[:2])
    known = np.ones(targets.shape, dtype=bool)
    aside = np.broadcast_to(set_aside(num_samples), targets.shape)
    return TrainingSamples(inputs, targets, known, aside), truth


def start_of(num_workers, seed=1):
    rng = np.random.default_rng(seed)
    return np.array([NETWORK.init(rng) for _ in range(num_workers)])


def rms(parameters, samples):
    return np.sqrt(np.mean((NETWORK.output(parameters, samples.inputs) - samples.targets) ** 2, 1))


def test_fit_finds_what_a_network_of_its_form_says():
    samples, _ = make_samples()
    start = start_of(3)
    fitted = fit(NETWORK, start, samples, patience=10)
    assert (rms(start, samples) > 0.1).all()
    assert (rms(fitted.parameters, samples) < 0.02).all()


def test_noise_is_not_learned():
    samples, truth = make_samples(noise=0.1)
    fitted = fit(NETWORK, start_of(3), samples, patience=10)
    without = TrainingSamples(
        samples.inputs, NETWORK.output(truth, samples.inputs), *[samples.known] * 2
    )
    assert (rms(fitted.parameters, without) < 0.05).all()


def test_training_ends_early_where_nothing_can_be_improved():
    samples, truth = make_samples()
    fitted = fit(NETWORK, truth, samples, patience=4)
    assert fitted.steps.tolist() == [4, 4, 4]
    np.testing.assert_array_equal(fitted.parameters, truth)


def test_training_takes_no_more_than_the_most_steps():
    samples, _ = make_samples(noise=0.1)
    assert fit(NETWORK, start_of(3), samples, max_steps=2).steps.tolist() == [2, 2, 2]
    assert fit(NETWORK, start_of(3), samples, max_steps=0).steps.tolist() == [0, 0, 0]


def test_errors_are_those_of_the_parameters_returned_on_the_samples_set_aside():
    samples, _ = make_samples(noise=0.01)
    fitted = fit(NETWORK, start_of(3), samples, patience=10)
    residuals = NETWORK.output(fitted.parameters, samples.inputs) - samples.targets
    mean = (residuals**2).mean(axis=1, where=samples.aside)
    np.testing.assert_allclose(fitted.errors, mean, rtol=1e-9)


def test_samples_set_aside_decide_which_parameters_are_the_best():
    samples, _ = make_samples()
    start = start_of(3)
    # The samples set aside show that the start was right, whatever the others teach.
    targets = np.where(samples.aside, NETWORK.output(start, samples.inputs), samples.targets)
    fitted = fit(
        NETWORK, start, TrainingSamples(samples.inputs, targets, samples.known, samples.aside)
    )
    np.testing.assert_array_equal(fitted.parameters, start)


def test_numbers_of_unknown_samples_do_not_matter():
    samples, _ = make_samples(noise=0.05)
    known = np.random.default_rng(2).random(samples.known.shape) < 0.7
    results = []
    for filler in (np.nan, 5.0):
        inputs = np.where(known[:, :, None], samples.inputs, filler)
        targets = np.where(known, samples.targets, filler)
        results.append(
            fit(NETWORK, start_of(3), TrainingSamples(inputs, targets, known, samples.aside))
        )
    np.testing.assert_array_equal(results[0].parameters, results[1].parameters)
    np.testing.assert_array_equal(results[0].steps, results[1].steps)


def test_worker_without_a_known_sample_keeps_its_start():
    samples, _ = make_samples()
    known = samples.known & (np.arange(3) != 1)[:, None]
    start = start_of(3)
    fitted = fit(
        NETWORK, start, TrainingSamples(samples.inputs, samples.targets, known, samples.aside)
    )
    np.testing.assert_array_equal(fitted.parameters[1], start[1])
    assert fitted.steps[1] == 3


def test_workers_are_trained_independently():
    samples, _ = make_samples(noise=0.05)
    start = start_of(3)
    together = fit(NETWORK, start, samples)
    for i in range(3):
        alone = fit(NETWORK, start[i : i + 1], samples.of(np.array([i])))
        np.testing.assert_allclose(alone.parameters[0], together.parameters[i], rtol=1e-6)
        assert alone.steps[0] == together.steps[i]


@pytest.mark.parametrize("seed", range(3))
def test_the_firmer_the_hold_the_nearer_the_start(seed):
    samples, truth = make_samples(noise=0.05, seed=seed)
    start = truth + 0.3
    ways = [
        np.linalg.norm(fit(NETWORK, start, samples, hold=hold).parameters - start, axis=1)
        for hold in (1.0, 100.0, 1e6)
    ]
    assert (ways[0] > ways[1]).all()
    assert (ways[1] > ways[2]).all()
    assert (ways[2] < 1e-3).all()


def test_spikes_count_less_than_their_square():
    samples, truth = make_samples(noise=0.02)
    spiked = np.random.default_rng(3).random(samples.targets.shape) < 0.03
    targets = np.where(spiked, samples.targets + 3.0, samples.targets)
    fitted = fit(
        NETWORK,
        truth,
        TrainingSamples(samples.inputs, targets, samples.known, samples.aside),
        hold=1.0,
    )
    assert (rms(fitted.parameters, samples) < 0.06).all()


def test_what_is_given_stays_as_it_is():
    samples, _ = make_samples(noise=0.05)
    start = start_of(3)
    kept = start.copy()
    fit(NETWORK, start, samples)
    np.testing.assert_array_equal(start, kept)
