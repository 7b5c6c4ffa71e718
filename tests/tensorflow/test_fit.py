"""`model.fit` through one callback and one data set call: as a single process would train."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from evenstep.core.rows import sealed
from evenstep.core.stock_order import stock_order
from evenstep.errors import InvalidSetting, StateFileError
from evenstep.tensorflow import FitBalancer
from evenstep.tensorflow.fit import parts_of
from tests.tensorflow.setup import cycle, data, distance, loss_of, net, note_reports, parameters

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

TOTAL = 16
TABLE = ((8, 8), (3, 13), (15, 1), (1, 15), (6, 10), (11, 5), (2, 14))
EPOCH = 6
NUM_SAMPLES = TOTAL * (EPOCH - 1) + 7
VALIDATED = 2 * TOTAL + 5
EPOCHS = 9
"""So that there are more than 50 iterations."""


class Noting(keras.layers.Layer):  # type: ignore[misc]
    """A layer that counts how often it is traced, and notes the sizes of the batches it gets."""

    def __init__(self, seconds=None, **settings):
        super().__init__(**settings)
        self.traces, self.sizes = 0, []
        self.seconds = seconds or (lambda: 0.0)

    def call(self, inputs, training=False):
        if not training:
            return inputs
        self.traces += 1
        noted = tf.numpy_function(self.note, [inputs], inputs.dtype)
        noted.set_shape(inputs.shape)
        return noted

    def note(self, inputs):
        self.sizes.append(len(inputs))
        time.sleep(self.seconds())
        return inputs


def compiled(strategy, how="clipped", seconds=None, norm=False, **settings):
    """Return a small net under a strategy, to be trained by fit, and the layer that notes."""
    noting = Noting(seconds, dtype="float64")
    with strategy.scope():
        inner = net()
        model = keras.Sequential([keras.Input(inner.input_shape[1:], dtype="float64"), noting])
        for layer in inner.layers:
            model.add(layer)
        if norm:
            model = keras.Sequential(
                [keras.Input(inner.input_shape[1:], dtype="float64"),
                 keras.layers.BatchNormalization(dtype="float64"), model]
            )  # fmt: skip
        optimizer = {
            "clipped": lambda: keras.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=0.05),
            "adam": lambda: keras.optimizers.Adam(0.05),
        }[how]()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, **settings)
    return model, noting


def fit(strategy, how):
    """Train on two workers; return what came of it."""
    model, noting = compiled(strategy, how)
    balancer = FitBalancer(model, TOTAL, policy=cycle(*TABLE), summary=False)
    noted = note_reports(balancer._loop)
    samples = balancer.dataset(data(NUM_SAMPLES), seed=3, pad=False)
    history = model.fit(
        samples, epochs=EPOCHS, callbacks=[balancer], verbose=0, shuffle=False
    )  # fmt: skip
    balancer.close()
    used = [done.sizes.tolist() for _, done in noted]
    return parameters(model), list(noting.sizes), used, noting.traces, history.history["loss"]


def fit_alone(strategy, how):
    """Train on one worker, on joined batches in the order of the epochs."""
    del strategy
    model, _ = compiled(tf.distribute.get_strategy(), how)
    x, y = data(NUM_SAMPLES)
    losses = []
    for epoch in range(EPOCHS):
        order = stock_order(NUM_SAMPLES, 3, epoch)
        batches = [order[i : i + TOTAL] for i in range(0, NUM_SAMPLES, TOTAL)]
        of_epoch = 0.0
        for batch in batches:
            of_epoch += len(batch) * float(loss_of(y[batch], model(x[batch])))
            model.train_on_batch(x[batch], y[batch])
        losses.append(of_epoch / NUM_SAMPLES)
    return parameters(model), losses


def fit_with_another_total(strategy):
    model, _ = compiled(strategy, "adam")
    balancer = FitBalancer(model, TOTAL, summary=False)
    with pytest.raises(InvalidSetting, match=r"total must stay 16 with fit, .* got 32"):
        balancer.total = 32
    balancer.close()
    return balancer.total


def test_total_of_a_fit_cannot_change(cluster):
    assert cluster.run(fit_with_another_total) == [TOTAL, TOTAL]


@pytest.mark.parametrize("how", ["adam", "clipped"])
def test_fit_trains_as_a_single_process_does(cluster, how):
    expected, losses = cluster.run(fit_alone, how=how)[0]
    for worker, (fitted, sizes, used, traces, shown) in enumerate(cluster.run(fit, how=how)):
        # Keras computes losses in float32, also for models in other types.
        assert distance(fitted, expected) < 1e-6
        assert len(used) == EPOCH * EPOCHS > 50
        # What Keras ran is what was planned for that iteration, and it was traced for all sizes.
        assert sizes == [max(theirs[worker], 1) for theirs in used]
        assert len(set(sizes)) >= 7
        assert traces <= 2
        assert shown == pytest.approx(losses, rel=1e-6)


WORK = 0.05


def beside_a_slow_colleague(strategy):
    """Return typical times of both workers, with equal work and with one that takes longer."""
    worker = int(strategy.cluster_resolver.task_id)
    factors = [1]
    model, _ = compiled(strategy, seconds=lambda: WORK * (factors[-1] if worker == 1 else 1))
    balancer = FitBalancer(model, TOTAL, policy=cycle((8, 8)), summary=False)
    noted = note_reports(balancer._loop)
    samples = balancer.dataset(data(TOTAL * 7))
    for factor in (1, 8):
        factors.append(factor)
        model.fit(samples, callbacks=[balancer], verbose=0, shuffle=False)
    balancer.close()
    times = np.array([reports.times for reports, _ in noted])
    return [np.nanquantile(part, 0.3, axis=0).tolist() for part in (times[:7], times[7:])]


def test_time_of_a_fast_worker_is_not_that_of_a_slow_colleague_in_fit(cluster):
    for equal, unequal in cluster.run(beside_a_slow_colleague):
        assert equal[0] >= WORK
        assert unequal[0] < 4 * WORK
        assert unequal[1] >= 8 * WORK


def afterwards(strategy):
    """Fit with a balancer, and with another that takes its state up."""
    model, _ = compiled(strategy, norm=True)
    first = FitBalancer(model, TOTAL, policy=cycle(*TABLE), summary=False)
    first_data = first.dataset(data(NUM_SAMPLES))
    model.fit(first_data, epochs=2, callbacks=[first], verbose=0, shuffle=False)
    second = FitBalancer(model, TOTAL, policy=cycle(*TABLE), summary=False)
    second_data = second.dataset(data(NUM_SAMPLES))
    state = first.state_dict()
    for damaged in ({**state, "epochs": None}, sealed({**state, "epochs": {"epoch": 2}}), {}):
        with pytest.raises(StateFileError):
            second.load_state_dict(damaged)
    assert second._loop.iteration == 0
    second.load_state_dict(state)
    model.fit(second_data, callbacks=[second], verbose=0, shuffle=False)
    second.close()
    free = "apply" not in vars(model.optimizer) and "train_step" not in vars(model)
    mean = model.layers[0].moving_mean.numpy().tolist()
    return second._loop.iteration, second.state_dict()["epochs"]["epoch"], free, mean


def test_a_state_is_taken_up_and_a_model_is_free_again(cluster):
    first, second = cluster.run(afterwards)
    assert first[:3] == (3 * EPOCH, 3, True)
    # BatchNorm's statistics are averaged at the end of an epoch.
    assert first == second and first[3] != [0.0] * len(first[3])


MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "jit_compile must be False": ({"jit_compile": True}, {}),
    "steps_per_execution must be 1": ({"steps_per_execution": 2}, {}),
    "steps_per_epoch must be that of the data set, 3, got 2": ({}, {"steps_per_epoch": 2}),
}


def validated(strategy):
    """Fit with validation data, evaluate by itself, and fit again without."""
    model, _ = compiled(strategy, norm=True, metrics=["accuracy"])
    balancer = FitBalancer(model, TOTAL, policy=cycle(*TABLE), summary=False)
    samples = balancer.dataset(data(NUM_SAMPLES))
    unseen = balancer.validation(data(VALIDATED))
    how = {"callbacks": [balancer], "verbose": 0}
    history = model.fit(samples, epochs=3, validation_data=unseen, shuffle=False, **how).history
    during = [history[f"val_{name}"] for name in ("loss", "accuracy")]
    after = model.evaluate(unseen, **how)
    free = "test_step" not in vars(model)
    weights = model.get_weights()
    model.fit(samples, shuffle=False, **how)
    balancer.close()
    return during, after, free, weights, balancer.iteration


def evaluated_alone(strategy, weights):
    """Evaluate a model with these weights on one worker."""
    del strategy
    model, _ = compiled(tf.distribute.get_strategy(), norm=True, metrics=["accuracy"])
    model.set_weights(weights)
    x, y = data(VALIDATED)
    return model.evaluate(x, y, verbose=0)


def test_validation_is_the_mean_over_all_samples(cluster):
    (during, after, free, weights, iterations), other = cluster.run(validated)
    assert (during, after) == other[:2]
    [alone, _] = cluster.run(evaluated_alone, weights=weights)
    assert after == pytest.approx(alone, rel=1e-6)
    # The last epoch was validated with the same parameters, and the same running statistics.
    assert [values[-1] for values in during] == pytest.approx(alone, rel=1e-6)
    assert len(set(during[0])) == 3
    assert free and iterations == 4 * EPOCH


def test_validation_takes_a_sample_for_each_worker():
    with pytest.raises(InvalidSetting, match="at least one for each of 3 workers, got 2"):
        parts_of(2, total=8, num_workers=3)


class Stopping(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends a fit in its second iteration, without a word."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise KeyError("a mistake")


def failed(strategy):
    """Fit with another callback that fails, and then without it."""
    model, noting = compiled(strategy)
    balancer = FitBalancer(model, TOTAL, policy=cycle(*TABLE), summary=False)
    samples = balancer.dataset(data(NUM_SAMPLES))
    how = {"verbose": 0, "shuffle": False}
    with pytest.raises(KeyError):
        model.fit(samples, callbacks=[balancer, Stopping()], **how)
    model.fit(samples, callbacks=[balancer], **how)
    balancer.close()
    return balancer.iteration, len(noting.sizes)


def test_a_fit_after_one_that_failed_is_as_good_as_any(cluster):
    assert cluster.run(failed) == [(2 + EPOCH, 2 + EPOCH)] * 2


def mistaken(strategy):
    """Return what is said about each mistake."""
    said = []
    for compiling, fitting in MISTAKES.values():
        model, _ = compiled(strategy, **compiling)
        balancer = FitBalancer(model, TOTAL, summary=False)
        samples = balancer.dataset(data(TOTAL * 3))
        with pytest.raises(InvalidSetting) as raised:
            model.fit(samples, callbacks=[balancer], verbose=0, shuffle=False, **fitting)
        balancer.close()
        said.append(str(raised.value))
    return said


def test_what_cannot_be_balanced_is_refused(cluster):
    for said in cluster.run(mistaken):
        assert [part in message for part, message in zip(MISTAKES, said, strict=True)] == [True] * 3
