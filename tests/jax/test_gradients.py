"""Gradients: those of the joined batch, for all sizes, and of each sample once."""

from __future__ import annotations

from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from evenstep.core.stock_order import stock_order
from evenstep.jax.collective import ProcessSum
from tests.jax.setup import arrays_of, balanced, cycle, data, joined_batches, losses, net
from tests.training.sequences import read_sequences

pytestmark = pytest.mark.distributed

TOTAL, NUM_SAMPLES = 24, 200
PLANS = ((12, 12), (3, 21), (17, 7), (23, 1), (10, 14))
OPTIMIZERS = {"sgd": optax.sgd(0.1, momentum=0.9), "adam": optax.adam(1e-2)}


def trained(optimizer, num_iterations, mode="balanced"):
    """Train by unequal, changing plans with an optimizer of optax; return the parameters."""
    policy = {} if mode == "off" else {"policy": cycle(*PLANS)}
    with balanced(TOTAL, bucket=4, mode=mode, **policy) as balancer:
        loader, params = balancer.loader(data(NUM_SAMPLES)), net()
        value_and_grad = balancer.value_and_grad(losses)
        update = OPTIMIZERS[optimizer]
        state = update.init(params)
        epochs = (batch for _ in iter(int, 1) for batch in loader)
        for batch in islice(epochs, num_iterations):
            _, gradient = value_and_grad(params, *batch)
            updates, state = update.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        return arrays_of(params)


def trained_alone(optimizer, num_iterations):
    """Train a single process on the joined batches, with nothing of ours."""
    params, update = net(), OPTIMIZERS[optimizer]
    state = update.init(params)
    gradient_of = jax.jit(jax.grad(lambda params, *batch: losses(params, *batch).mean()))
    for batch in joined_batches(NUM_SAMPLES, TOTAL, num_iterations):
        updates, state = update.update(gradient_of(params, *batch), state, params)
        params = optax.apply_updates(params, updates)
    return arrays_of(params)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_parameters_after_50_iterations_are_those_of_a_single_process(workers, optimizer):
    first, second = workers.run(trained, optimizer=optimizer, num_iterations=50)
    alone = trained_alone(optimizer, 50)
    before = arrays_of(net())
    for mine, others, expected, start in zip(first, second, alone, before, strict=True):
        assert np.array_equal(mine, others)
        np.testing.assert_allclose(mine, expected, rtol=0, atol=3e-5)
        assert np.abs(mine - start).max() > 0.1


def test_plain_bsp_trains_the_same(workers):
    first, _ = workers.run(trained, optimizer="sgd", num_iterations=20, mode="off")
    for mine, expected in zip(first, trained_alone("sgd", 20), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-5)


def once(**how):
    """Return loss, figures and gradient of a first iteration with batches of 5 and 19."""
    with balanced(TOTAL, bucket=8, policy=cycle((5, 19))) as balancer:
        batch = next(iter(balancer.loader(data(NUM_SAMPLES))))
        loss_fn = {(): losses, ("has_aux",): with_figures, ("counted",): counted}[tuple(how)]
        value, gradient = balancer.value_and_grad(loss_fn, **how)(net(), *batch)
        return len(batch[0]), arrays_of(value), arrays_of(gradient)


def with_figures(params, inputs, targets):
    """Return losses, and as figures which targets are positive, and the inputs."""
    return losses(params, inputs, targets), {"positive": targets > 0, "inputs": inputs}


def counted(params, inputs, targets):
    """Return what might be sums over tokens, and how many they are."""
    return losses(params, inputs, targets), jnp.where(inputs[:, 0] > 0, 7, 2)


def test_loss_and_gradient_are_those_of_the_joined_batch(workers):
    answers = workers.run(once)
    [batch] = joined_batches(NUM_SAMPLES, TOTAL, 1)
    loss, gradient = jax.value_and_grad(lambda params: losses(params, *batch).mean())(net())
    assert [size for size, _, _ in answers] == [5, 19]
    for _, [mine], mine_gradient in answers:
        assert mine == pytest.approx(float(loss), rel=1e-6)
        for ours, expected in zip(mine_gradient, arrays_of(gradient), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-7)


def with_totals():
    """Return the gradients of an iteration of 24 samples and of one of 40."""
    with balanced(TOTAL, bucket=8, mode="static", shares=[1, 2]) as balancer:
        compute = balancer.value_and_grad(losses)
        found = []
        for batch in balancer.loader(data(NUM_SAMPLES)):
            found.append((len(batch[0]), arrays_of(compute(net(), *batch)[1])))
            balancer.total = 40
            if len(found) == 2:
                return found
    return found


def test_gradients_of_two_totals_are_those_of_the_joined_batches(workers):
    inputs, targets = data(NUM_SAMPLES)
    order = stock_order(NUM_SAMPLES, 0, 0)
    slices = [order[:24], order[24:64]]
    for worker, found in enumerate(workers.run(with_totals)):
        assert [size for size, _ in found] == [[8, 16], [16, 24]][worker]
        for (_, gradient), samples in zip(found, slices, strict=True):
            batch = inputs[samples], targets[samples]
            expected = jax.grad(lambda params, batch=batch: losses(params, *batch).mean())(net())
            for ours, theirs in zip(gradient, arrays_of(expected), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_figures_are_means_over_the_joined_batch(workers):
    [inputs, targets] = next(joined_batches(NUM_SAMPLES, TOTAL, 1))
    for _, (loss, mean_inputs, positive), _ in workers.run(once, has_aux=True):
        assert loss == pytest.approx(float(losses(net(), inputs, targets).mean()), rel=1e-6)
        np.testing.assert_allclose(mean_inputs, inputs.mean(axis=0), atol=1e-6)
        assert positive == pytest.approx((targets > 0).mean(), rel=1e-6)


def test_counted_losses_are_means_over_all_that_is_counted(workers):
    batch = next(joined_batches(NUM_SAMPLES, TOTAL, 1))

    def mean(params):
        sums, counts = counted(params, *batch)
        return sums.sum() / counts.sum()

    loss, gradient = jax.value_and_grad(mean)(net())
    for _, [mine], mine_gradient in workers.run(once, counted=True):
        assert mine == pytest.approx(float(loss), rel=1e-6)
        for ours, expected in zip(mine_gradient, arrays_of(gradient), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-7)


def dealt_out():
    """Return the samples that were fetched, and what each contributed to every gradient."""
    written = read_sequences()
    with balanced(written.total, bucket=4, policy=written.policy()) as balancer:
        loader = balancer.loader(
            fetch=lambda indices: indices, num_samples=written.num_samples, seed=written.seed
        )
        value_and_grad = balancer.value_and_grad(lambda params, index: params[index])
        fetched, contributed = [], []
        for index in (index for _ in range(2) for index in loader):
            _, gradient = value_and_grad(jnp.zeros(written.num_samples), index)
            fetched.append(index.tolist())
            contributed.append(np.asarray(gradient))
        return fetched, contributed


def test_every_sample_is_dealt_out_as_in_other_frameworks_and_counts_once(workers):
    written = read_sequences()
    for worker, (fetched, contributed) in enumerate(workers.run(dealt_out)):
        assert fetched == written.of_worker(worker)
        for samples, gradient in zip(written.worker_samples, contributed, strict=True):
            joined = np.concatenate(samples)
            expected = np.zeros(written.num_samples)
            expected[joined] = 1 / len(joined)
            np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def benched():
    """Return the gradient where a worker has no samples, and borrows one that is no number."""
    with balanced(4, bucket=2, minimum=0, policy=cycle((0, 4))) as balancer:
        index = next(iter(balancer.loader(np.arange(8), shuffle=False)))
        scale = jnp.inf if balancer.worker == 0 else 1.0
        value_and_grad = balancer.value_and_grad(lambda params, index, scale: params[index] * scale)
        loss, gradient = value_and_grad(jnp.ones(8), index, np.full(len(index), scale))
        return len(index), float(loss), np.asarray(gradient).tolist()


def test_a_worker_without_samples_adds_nothing_be_it_not_a_number(workers):
    joined = 1.0, [0.25] * 4 + [0.0] * 4
    assert workers.run(benched) == [(1, *joined), (4, *joined)]


def collectives():
    """Return how many collectives sum a gradient with the reports behind it."""
    summing = ProcessSum()
    rows = [summing._row(np.ones((1, width), dtype=np.float32)) for width in (1000, 16)]
    return summing._sum.lower(*rows).compile().as_text().count(" all-reduce(")


def test_reports_ride_in_the_collective_of_the_gradient(workers):
    assert workers.run(collectives) == [1, 1]


def short_of_memory():
    """Return dtypes and values of gradients where parameters are of several dtypes."""
    with balanced(6, bucket=2, policy=cycle((1, 5))) as balancer:
        inputs = next(iter(balancer.loader(np.arange(6, dtype=np.float32))))
        params = {"half": jnp.ones(1, jnp.bfloat16), "full": jnp.ones((1, 1), jnp.float32)}
        _, gradient = balancer.value_and_grad(
            lambda params, x: x * params["half"][0] + x * params["full"][0, 0]
        )(params, inputs)
        return {name: (str(leaf.dtype), float(leaf.sum())) for name, leaf in gradient.items()}


def test_gradients_have_the_dtypes_of_their_parameters(workers):
    expected = {"half": ("bfloat16", 2.5), "full": ("float32", 2.5)}
    assert workers.run(short_of_memory) == [expected, expected]
