"""Train a small net on digits under MultiWorkerMirroredStrategy, by a loop or by `model.fit`.

Start it once per worker, each with its own number; both on this machine:

    python examples/tensorflow_digits.py 0 & python examples/tensorflow_digits.py 1

With --fit, Keras's fit trains. The digits are drawn here, of seven segments each, with noise, so
that only TensorFlow is needed and nothing is downloaded.
"""

import argparse
import json
import os
from typing import Any

import numpy as np

EPOCHS, TOTAL = 4, 64
SEGMENTS = ["abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg"]
PLACES: dict[str, tuple[Any, Any]] = {
    "a": (0, slice(1, 4)), "g": (3, slice(1, 4)), "d": (6, slice(1, 4)),
    "f": (slice(1, 3), 0), "b": (slice(1, 3), 4), "e": (slice(4, 6), 0), "c": (slice(4, 6), 4),
}  # fmt: skip


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy pictures of digits, 7 x 5 pixels each, and which digits they are."""
    random = np.random.default_rng(0)
    clean = np.zeros((10, 7, 5), "float32")
    for digit, segments in enumerate(SEGMENTS):
        for segment in segments:
            clean[(digit, *PLACES[segment])] = 1
    labels = random.integers(0, 10, count)
    return clean[labels] + random.normal(0, 0.4, (count, 7, 5)).astype("float32"), labels


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("worker", type=int, help="the number of this worker, from 0")
parser.add_argument("--addresses", default="127.0.0.1:23456,127.0.0.1:23457")
parser.add_argument("--fit", action="store_true", help="train by model.fit")
parser.add_argument("--log", help="run log, written by worker 0")
args = parser.parse_args()
# As the strategy wants it, before TensorFlow is loaded.
os.environ["TF_CONFIG"] = json.dumps(
    {
        "cluster": {"worker": args.addresses.split(",")},
        "task": {"type": "worker", "index": args.worker},
    }
)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from evenstep.tensorflow import Balancer, FitBalancer  # noqa: E402

strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(0)
images, labels = digits(1200)
train, test = (images[:1000], labels[:1000]), (images[1000:], labels[1000:])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((7, 5)),
            keras.layers.Flatten(),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01)


def train_by_fit() -> None:
    """Let Keras train: one callback, and one call for the data set."""
    with strategy.scope():
        model.compile(optimizer, loss_of)
    balancer = FitBalancer(model, TOTAL, log=args.log)
    dataset = balancer.dataset(train)
    model.fit(dataset, epochs=EPOCHS, callbacks=[balancer], verbose=0, shuffle=False)
    balancer.close()


def train_by_loop() -> None:
    """Train by a loop: local gradients here, their exchange and the update in `apply`."""
    balancer = Balancer(strategy, TOTAL, log=args.log)
    dataset = balancer.dataset(train)

    def gradients_of(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients: list[tf.Tensor] = tape.gradient(loss, model.trainable_variables)
        return gradients

    # Traced once, for all batch sizes.
    local_gradients = tf.function(gradients_of, input_signature=dataset.element_spec)
    for _ in range(EPOCHS):
        for x, y in dataset:
            balancer.apply(optimizer, local_gradients(x, y), model.trainable_variables)
    balancer.close()


if args.fit:
    train_by_fit()
else:
    train_by_loop()
guesses = np.argmax(model(test[0]), axis=1)
print(f"worker {args.worker}: accuracy {np.mean(guesses == test[1]):.1%} after {EPOCHS} epochs")
