"""The data of `fit`: batches that are made when they are asked for, by each worker for itself.

Keras lets a strategy distribute a data set, which cuts its batches up, shards them, and fetches
ahead. What is distributed already it takes as it is: so that is what this claims to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

# Keras takes an adapter of one's own for the data of `fit`, but does not export what it is.
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from evenstep.core.arrays import Ints
from evenstep.tensorflow.fetching import INDICES, Samples


class _Distributed(tf.distribute.DistributedDataset):  # type: ignore[misc]
    """A data set of which every worker has its own part."""

    def __init__(self, batches: tf.data.Dataset) -> None:
        self._batches = batches

    def __iter__(self) -> Any:
        return iter(self._batches)

    @property
    def element_spec(self) -> Any:
        return self._batches.element_spec

    @property
    def cardinality(self) -> int:
        return int(self._batches.cardinality())

    def reduce(self, initial_state: Any, reduce_func: Any) -> Any:
        return self._batches.reduce(initial_state, reduce_func)


def for_fit(deals: Callable[[], Iterator[Ints]], samples: Samples, num_iterations: int) -> Any:
    """Return the batches of the samples that are dealt out, as Keras's `fit` takes them."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    batches = tf.data.Dataset.from_generator(deals, output_signature=INDICES)
    batches = batches.map(samples.batch)
    batches = batches.apply(tf.data.experimental.assert_cardinality(num_iterations))
    return TFDatasetAdapter(_Distributed(batches.with_options(options)))
