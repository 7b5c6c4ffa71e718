"""The update of an iteration: the exchange of gradients and the optimizer's step, in one function.

None of its shapes depends on batch sizes, so it is traced once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from evenstep.tensorflow.collective import on_workers
from evenstep.tensorflow.summing import Gradient, summed_already, weighted_sums


class Update:
    """Sums weighted gradients over all workers, and applies them with an optimizer."""

    def __init__(
        self, strategy: tf.distribute.Strategy, optimizer: Any, variables: Sequence[Any]
    ) -> None:
        variables = list(variables)
        self.made_of = optimizer, variables
        if not optimizer.built:
            with strategy.scope():
                optimizer.build(variables)

        def on_worker(gradients: list[Gradient], weight: tf.Tensor, slots: tf.Tensor) -> tf.Tensor:
            summed, rows = weighted_sums(gradients, weight, slots)
            with summed_already(optimizer):
                optimizer.apply(summed, variables)
            return rows

        self._update = on_workers(strategy, on_worker)

    def __call__(self, gradients: Sequence[Gradient], weight: float, slots: Any) -> Any:
        """Apply the gradients of all workers, and return the rows of all."""
        # In float32 the weight alone would be wrong by 1e-8, which gradients in float64 show.
        rows = self._update(
            list(gradients), tf.constant(weight, tf.float64), tf.constant(slots, tf.float32)
        )
        return rows.numpy()


def wait_for(gradients: Sequence[Gradient]) -> None:
    """Wait until the local gradients are computed: a device may still be working on them.

    A device works in order, so that reading the smallest is enough.
    """
    dense = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
    if dense:
        min(dense, key=lambda gradient: gradient.shape.num_elements()).numpy()
