"""A loop under MultiWorkerMirroredStrategy: the joined batch's gradient, for all sizes."""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from evenstep.core.stock_order import stock_order
from evenstep.training.epochs import Epochs
from tests.tensorflow.setup import (
    balanced,
    cycle,
    data,
    distance,
    exchange,
    gradients_of,
    net,
    note_reports,
    parameters,
)

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

TOTAL = 16
TABLE = ((8, 8), (3, 13), (15, 1), (1, 15), (6, 10), (11, 5), (2, 14))
EPOCH = 6
"""Iterations; the last one is smaller."""
NUM_SAMPLES = TOTAL * (EPOCH - 1) + 7


def optimizer_of(how):
    """Make an optimizer that would notice gradients of another scale, and sums of clipped ones."""
    if how == "clipped":
        return keras.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=0.05)
    return {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[how](0.05)


def fit(strategy, how, iterations=50, **settings):
    """Train on two workers, with tails; return the parameters, and how often was traced."""
    with strategy.scope():
        model, optimizer = net(), optimizer_of(how)
    with balanced(strategy, TOTAL, policy=cycle(*TABLE), **settings) as balancer:
        dataset = balancer.dataset(data(NUM_SAMPLES), seed=3, pad=False)
        local_gradients = gradients_of(model, dataset.element_spec)
        sizes = []
        while balancer.iteration < iterations:
            for x, y in dataset:
                sizes.append((len(x), balancer.batch_size))
                balancer.apply(optimizer, local_gradients(x, y), model.trainable_variables)
                if balancer.iteration == iterations:
                    break
        [update] = balancer._updates.values()
        traces = [
            local_gradients.experimental_get_tracing_count(),
            update._update.experimental_get_tracing_count(),
            dataset._samples.fetch.experimental_get_tracing_count(),
        ]
        return parameters(model), sizes, traces


def fit_alone(strategy, how, iterations=50):
    """Train on one worker, on joined batches in the order of the epochs."""
    del strategy
    model, optimizer = net(), optimizer_of(how)
    local_gradients = gradients_of(model)
    x, y = data(NUM_SAMPLES)
    batches = [
        order[i : i + TOTAL]
        for epoch in range(9)
        for order in [stock_order(NUM_SAMPLES, 3, epoch)]
        for i in range(0, NUM_SAMPLES, TOTAL)
    ]
    for batch in batches[:iterations]:
        optimizer.apply(local_gradients(x[batch], y[batch]), model.trainable_variables)
    return parameters(model)


@pytest.mark.parametrize("how", ["sgd", "adam", "clipped"])
def test_parameters_are_those_of_a_single_process(cluster, how):
    expected = cluster.run(fit_alone, how=how)[0]
    untrained = cluster.run(fit_alone, how=how, iterations=0)[0]
    assert distance(untrained, expected) > 0.1
    for fitted, sizes, _ in cluster.run(fit, how=how):
        assert distance(fitted, expected) < 1e-10
        assert len(sizes) == 50


def test_new_sizes_hold_from_the_next_batch_on_and_are_never_traced_again(cluster):
    for _, sizes, traces in cluster.run(fit, how="sgd", iterations=30):
        full = [(got, planned) for k, (got, planned) in enumerate(sizes) if k % EPOCH != EPOCH - 1]
        assert all(got == planned for got, planned in full)
        assert len({got for got, _ in sizes}) >= 7
        assert traces == [1, 1, 1]


def visited(strategy, shuffle=True, table=TABLE, **settings):
    """Return the samples of each iteration of two epochs, and the plans."""
    with balanced(strategy, TOTAL, policy=cycle(*table), **settings) as balancer:
        dataset = balancer.dataset(np.arange(NUM_SAMPLES), seed=7, shuffle=shuffle, pad=False)
        seen, plans = [], []
        for _ in range(2):
            for samples in dataset:
                plans.append(balancer.plan.sizes.tolist())
                seen.append(samples.numpy().tolist() if balancer._loop.samples else [])
                exchange(balancer)
        return seen, plans


def test_an_epoch_visits_every_sample_once(cluster):
    both = [seen for seen, _ in cluster.run(visited)]
    for epoch in (slice(0, EPOCH), slice(EPOCH, 2 * EPOCH)):
        everything = [index for seen in both for batch in seen[epoch] for index in batch]
        assert sorted(everything) == list(range(NUM_SAMPLES))
    assert both[0][:EPOCH] != both[0][EPOCH:]


def test_samples_are_those_that_the_core_deals_out(cluster):
    both = cluster.run(visited)
    plans = both[0][1]
    assert plans == both[1][1]
    assert {tuple(sizes) for sizes in plans} == set(TABLE)
    for worker, (seen, _) in enumerate(both):
        epochs = Epochs(NUM_SAMPLES, TOTAL, seed=7)
        for k, sizes in enumerate(plans):
            dealt = epochs.deal(np.array(sizes), worker)
            assert dealt is not None
            assert seen[k] == dealt.samples.tolist()
            epochs.advance()
            if epochs.position == len(epochs):
                epochs.end()


def test_a_worker_without_samples_runs_borrowed_ones_at_weight_0(cluster):
    table = ((8, 8), (0, 16), (16, 0))
    both = [seen for seen, _ in cluster.run(visited, table=table, minimum=0)]
    assert [] in both[0] and [] in both[1]
    everything = [index for seen in both for batch in seen[:EPOCH] for index in batch]
    assert sorted(everything) == list(range(NUM_SAMPLES))


def mapped(strategy):
    """Go through an epoch of samples that a function makes, one by one."""

    def make(index, word):
        return tf.cast(index, tf.float32) * tf.ones(2), tf.strings.join([word, "!"])

    words = np.array([f"w{i}" for i in range(NUM_SAMPLES)])
    with balanced(strategy, TOTAL, policy=cycle(*TABLE)) as balancer:
        dataset = balancer.dataset(
            (np.arange(NUM_SAMPLES), words), map=make, shuffle=False, pad=False
        )
        seen: list[tuple[float, bytes]] = []
        for samples, made in dataset:
            assert len(samples) == balancer._loop.samples
            seen += zip(samples[:, 1].numpy().tolist(), made.numpy().tolist(), strict=True)
            exchange(balancer)
        return seen, [str(spec.shape) for spec in dataset.element_spec]


def test_samples_are_made_by_a_function_one_by_one(cluster):
    both = cluster.run(mapped)
    assert both[0][1] == ["(None, 2)", "(None,)"]
    everything = sorted(pair for seen, _ in both for pair in seen)
    assert everything == [(float(i), f"w{i}!".encode()) for i in range(NUM_SAMPLES)]


def embedded(strategy):
    """Return the embedding after one iteration; one variable has no gradient."""
    with strategy.scope():
        table = keras.Variable(np.zeros((5, 2), "float32"))
        unused = keras.Variable(np.ones(3, "float32"))
        optimizer = keras.optimizers.SGD(1.0)
    indices, variables = np.array([0, 1, 1, 4]), [table, unused]
    with balanced(strategy, 4, mode="static", shares=(1, 3)) as balancer:
        for index in balancer.dataset(indices, shuffle=False):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.gather(table.value, index))
            gradients = tape.gradient(loss, [v.value for v in variables])
            assert isinstance(gradients[0], tf.IndexedSlices) and gradients[1] is None
            balancer.apply(optimizer, gradients, variables)
    return table.numpy()[:, 0].tolist(), unused.numpy().tolist()


def test_gradients_may_be_sparse_or_missing(cluster):
    for table, unused in cluster.run(embedded):
        assert table == pytest.approx([-1 / 8, -2 / 8, 0, 0, -1 / 8])
        assert unused == [1, 1, 1]


WORK = 0.05


def beside_a_slow_colleague(strategy):
    """Return typical times of both workers, with equal work and with one that takes much longer."""
    with balanced(strategy, TOTAL, policy=cycle((8, 8))) as balancer:
        noted = note_reports(balancer._loop)
        dataset = balancer.dataset(np.arange(TOTAL * 7))
        for factor in (1, 8):
            for _ in dataset:
                time.sleep(WORK * (factor if balancer.worker == 1 else 1))
                exchange(balancer)
        times = np.array([reports.times for reports, _ in noted])
        return [np.nanquantile(part, 0.3, axis=0).tolist() for part in (times[:7], times[7:])]


def test_time_of_a_fast_worker_is_not_that_of_a_slow_colleague(cluster):
    for equal, unequal in cluster.run(beside_a_slow_colleague):
        assert equal[0] >= WORK
        assert unequal[0] < 4 * WORK
        assert unequal[1] >= 8 * WORK
