"""Sums weighted gradients over all workers, in place of the sum that Keras's optimizers make.

A Keras optimizer clips, and only then sums. Here gradients are weighted and summed first, together
with the workers' rows, so that the optimizer clips the gradient of the joined batch, as in a
training on one machine. Its own sum is switched off meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from evenstep.errors import InvalidSetting
from evenstep.tensorflow.collective import sum_of_all

_SUMS = "_all_reduce_sum_gradients"
"""The method of Keras's optimizers that sums."""

Gradient = Any
"""A tensor, IndexedSlices, or None where the loss does not depend on a variable."""


def weighted_sums(
    gradients: list[Gradient], weight: tf.Tensor, slots: tf.Tensor
) -> tuple[list[Gradient], tf.Tensor]:
    """Return the weighted gradients, and the slots, both summed over all workers.

    Within `strategy.run`. The slots go in the same exchange as the gradients.
    """
    present = [i for i, gradient in enumerate(gradients) if gradient is not None]
    tensors = [dense(gradients[i]) for i in present]
    # With weight 0, a gradient is left out even if it is NaN.
    weighted = [
        tf.math.multiply_no_nan(tensor, tf.cast(weight, tensor.dtype)) for tensor in tensors
    ]
    *summed, rows = sum_of_all([*weighted, tf.identity(slots)])
    placed: list[Gradient] = list(gradients)
    for i, gradient in zip(present, summed, strict=True):
        placed[i] = gradient
    return placed, rows


def dense(gradient: Gradient) -> tf.Tensor:
    """Return a gradient as one dense tensor."""
    return tf.convert_to_tensor(gradient)


@contextmanager
def summed_already(optimizer: Any) -> Iterator[None]:
    """Make an optimizer apply gradients as they are, without summing them over all workers."""
    if not hasattr(optimizer, _SUMS) or hasattr(optimizer, "inner_optimizer"):
        raise InvalidSetting(
            "optimizer must be one of Keras 3 for TensorFlow, and scale no losses (mixed_float16; "
            f"mixed_bfloat16 can be used), got {type(optimizer).__name__}"
        )
    setattr(optimizer, _SUMS, lambda pairs: pairs)
    try:
        yield
    finally:
        delattr(optimizer, _SUMS)
