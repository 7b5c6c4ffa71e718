"""The training of the TensorFlow tests: a small net, data, sizes that change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evenstep.core import Reports
from evenstep.tensorflow import Balancer
from tests.training.cycle import cycle as cycle

FEATURES = 6
CLASSES = 3


def net(dtype: str = "float64") -> keras.Sequential:
    """Make a small net, the same in every process."""
    initial = [keras.initializers.GlorotUniform(seed) for seed in (7, 8)]
    return keras.Sequential(
        [
            keras.Input((FEATURES,), dtype=dtype),
            keras.layers.Dense(16, "tanh", kernel_initializer=initial[0], dtype=dtype),
            keras.layers.Dense(CLASSES, kernel_initializer=initial[1], dtype=dtype),
        ]
    )


def data(count: int, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    """Make samples and labels, the same in every process."""
    random = np.random.default_rng(11)
    samples = random.normal(size=(count, FEATURES)).astype(dtype)
    return samples, random.integers(0, CLASSES, count).astype("int32")


def loss_of(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Return the mean loss of a batch."""
    losses = keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
    return tf.reduce_mean(losses)


def gradients_of(model: keras.Model, signature: Any = None) -> Any:
    """Return a function from a batch to the gradients of its mean loss."""

    @tf.function(input_signature=signature)
    def local_gradients(samples: tf.Tensor, labels: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(samples, training=True))
        return tape.gradient(loss, model.trainable_variables)

    return local_gradients


@contextmanager
def balanced(strategy: tf.distribute.Strategy, total: int, **settings: Any) -> Iterator[Balancer]:
    balancer = Balancer(strategy, total, **{"summary": False, **settings})
    try:
        yield balancer
    finally:
        balancer.close()


def exchange(balancer: Balancer) -> None:
    """Train on something, so that the iteration comes to its end."""
    optimizer, variables = _something(balancer)
    balancer.apply(optimizer, [tf.zeros(1)], variables)


_made: dict[int, tuple[Any, list[Any]]] = {}


def _something(balancer: Balancer) -> tuple[Any, list[Any]]:
    if id(balancer) not in _made:
        _made.clear()
        with balancer._strategy.scope():
            variables = [keras.Variable(tf.zeros(1))]
            _made[id(balancer)] = keras.optimizers.SGD(), variables
    return _made[id(balancer)]


def note_reports(loop: Any) -> list[tuple[Reports, Any]]:
    """Return a list that fills with the reports, and what they are of, as they are learned."""
    noted: list[tuple[Reports, Any]] = []
    learn = loop._boundary.learn

    def note(reports: Reports, done: Any) -> None:
        noted.append((reports, done))
        learn(reports, done)

    loop._boundary.learn = note
    return noted


def parameters(model: keras.Model) -> np.ndarray:
    return np.concatenate([weights.ravel() for weights in model.get_weights()])


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference, relative to the largest number."""
    return float(np.abs(a - b).max() / np.abs(b).max())
