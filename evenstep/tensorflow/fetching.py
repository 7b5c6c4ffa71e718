"""Fetching: turns the indices of samples into a batch, with tf.data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from evenstep.errors import InvalidSetting

Map = Callable[..., Any]
"""Maps one sample to another, as for `tf.data.Dataset.map`."""

INDICES = tf.TensorSpec((None,), tf.int64)


class TensorSamples:
    """Samples in memory, or the values they are made from, such as file names."""

    def __init__(self, tensors: Any, map: Map | None = None) -> None:
        self._tensors = tf.nest.map_structure(tf.convert_to_tensor, tensors)
        self._map = map
        self.count = _common_length(self._tensors)
        self.fetch = tf.function(self.batch, input_signature=[INDICES])
        """Returns the batch of some indices; traced once, for batches of all sizes."""

    @property
    def element_spec(self) -> Any:
        """The shapes and types of a batch: their first dimension is None."""
        outputs = self.fetch.get_concrete_function().structured_outputs
        return tf.nest.map_structure(
            lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype), outputs
        )

    def batch(self, indices: tf.Tensor) -> Any:
        """Return the batch of some indices, in their order."""
        taken = tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), self._tensors)
        if self._map is None:
            return taken
        mapped = tf.data.Dataset.from_tensor_slices(taken).map(
            self._map, num_parallel_calls=tf.data.AUTOTUNE
        )
        return mapped.batch(tf.size(indices, tf.int64)).get_single_element()


def _common_length(tensors: Any) -> int:
    lengths = {tensor.shape[0] if tensor.shape.rank else 0 for tensor in tf.nest.flatten(tensors)}
    if len(lengths) != 1:
        raise InvalidSetting(
            "all tensors of a data set must have the same number of samples, got "
            f"{', '.join(map(str, sorted(lengths))) or 'none'}"
        )
    return int(lengths.pop())
