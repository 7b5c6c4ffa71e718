"""The networks: outputs by hand, and derivatives against differences."""

import numpy as np
import pytest

from evenstep.predictors.networks import Elman, FeedForward, Lstm, Network

NETWORKS = [FeedForward(num_inputs=8, hidden=3), Elman(hidden=3), Lstm(hidden=2)]


def _draw(network: Network, seed: int):
    rng = np.random.default_rng(seed)
    parameters = np.array([network.init(rng) for _ in range(4)])
    num_inputs = network.num_inputs if isinstance(network, FeedForward) else 2
    return parameters, rng.normal(size=(4, 5, num_inputs))


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_jacobian_equals_central_differences(network):
    parameters, inputs = _draw(network, seed=1)
    eps = 1e-6
    differences = np.stack(
        [
            (
                network.output(parameters + shift, inputs)
                - network.output(parameters - shift, inputs)
            )
            / (2 * eps)
            for shift in eps * np.eye(network.num_parameters)
        ],
        axis=2,
    )
    np.testing.assert_allclose(network.jacobian(parameters, inputs), differences, atol=1e-8)


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_shapes_are_worker_sample_parameter(network):
    parameters, inputs = _draw(network, seed=2)
    assert parameters.shape == (4, network.num_parameters)
    assert network.output(parameters, inputs).shape == (4, 5)
    assert network.jacobian(parameters, inputs).shape == (4, 5, network.num_parameters)


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_a_worker_s_output_depends_on_its_own_row_only(network):
    parameters, inputs = _draw(network, seed=3)
    together = network.output(parameters, inputs)
    alone = [network.output(parameters[i : i + 1], inputs[i : i + 1])[0] for i in range(4)]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_the_same_seed_draws_the_same_parameters(network):
    draws = [network.init(np.random.default_rng(4)) for _ in range(2)]
    np.testing.assert_array_equal(*draws)


def test_feed_forward_by_hand():
    # W = (1, 2), b = 0.5, a = 3, a_0 = 4.
    parameters = np.array([[1.0, 2.0, 0.5, 3.0, 4.0]])
    output = FeedForward(num_inputs=2, hidden=1).output(parameters, np.array([[[0.1, -0.2]]]))
    np.testing.assert_allclose(output, [[3 * np.tanh(0.1 - 0.4 + 0.5) + 4]])


def test_elman_by_hand():
    # w = 1, U = 2, b = 0.5, a = 3, a_0 = 4; the series is (0.1, -0.2), oldest first.
    parameters = np.array([[1.0, 2.0, 0.5, 3.0, 4.0]])
    first = np.tanh(0.1 + 0.5)
    output = Elman(hidden=1).output(parameters, np.array([[[0.1, -0.2]]]))
    np.testing.assert_allclose(output, [[3 * np.tanh(-0.2 + 2 * first + 0.5) + 4]])


def test_lstm_by_hand():
    # One value: the gates i, f, o and the candidate g see x w + b only, and nothing is forgotten.
    w, u, b = np.array([1.0, 2.0, 3.0, 4.0]), np.zeros(4), np.array([0.1, 0.2, 0.3, 0.4])
    parameters = np.concatenate([w, u, b, [5.0, 6.0]])[None]
    i, _, o = 1 / (1 + np.exp(-(0.7 * w + b)[:3]))
    s = i * np.tanh((0.7 * w + b)[3])
    output = Lstm(hidden=1).output(parameters, np.array([[[0.7]]]))
    np.testing.assert_allclose(output, [[5 * o * np.tanh(s) + 6]])
