"""Exchanges small values between the workers of a strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from evenstep.core import Floats
from evenstep.errors import InvalidSetting

_PIECE = 256
"""Numbers per exchange: one shape for rows of all lengths, so that one trace serves them all."""


class StrategyCollective:
    """Exchanges rows of numbers between the workers of a strategy, each with one device."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        _check(strategy)
        self.num_workers = int(strategy.num_replicas_in_sync)

        def number() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            return tf.identity(context.replica_id_in_sync_group)

        def summed(rows: tf.Tensor) -> tf.Tensor:
            return sum_of_all([tf.identity(rows)])[0]

        spec = tf.TensorSpec((self.num_workers, _PIECE), tf.float64)
        self.worker = int(on_workers(strategy, number)())
        self._summed = on_workers(strategy, summed, [spec])

    def everybody(self, row: Floats) -> Floats:
        """Return the rows of all workers, as a sum of tables that are zero but for one row."""
        pieces = [self._piece(row[i : i + _PIECE]) for i in range(0, len(row), _PIECE)]
        return np.concatenate(pieces, axis=1)

    def _piece(self, piece: Floats) -> Floats:
        rows = np.zeros((self.num_workers, _PIECE))
        rows[self.worker, : len(piece)] = piece
        summed: Floats = self._summed(tf.constant(rows)).numpy()
        return summed[:, : len(piece)]


def on_workers(
    strategy: tf.distribute.Strategy, work: Callable[..., Any], signature: Any = None
) -> Any:
    """Return a function that all workers run together, and that may contain collectives."""

    def run(*args: Any) -> Any:
        return strategy.run(work, args=args)

    return tf.function(run, input_signature=signature, autograph=False)


def sum_of_all(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Return the sums of some tensors over all workers; within `strategy.run`.

    Tensors of one dtype go in one exchange. They must have been made within `strategy.run`: the
    strategy looks up their device.
    """
    context = tf.distribute.get_replica_context()
    summed = dict.fromkeys(range(len(tensors)))
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [tensors[i] for i in alike])
        summed.update(zip(alike, sums, strict=True))
    return list(summed.values())


def _check(strategy: tf.distribute.Strategy) -> None:
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise InvalidSetting(
            "strategy must be synchronous, got ParameterServerStrategy, which is not: "
            "evenstep.tensorflow.ServerBalancer has a parameter server that is"
        )
    try:
        devices = strategy.extended.worker_devices
    except RuntimeError:
        raise InvalidSetting(
            "strategy must be made, and the model within its scope: MultiWorkerMirroredStrategy, "
            f"or OneDeviceStrategy for a worker alone, got {type(strategy).__name__}"
        ) from None
    if len(devices) != 1:
        raise InvalidSetting(
            "each worker must have one device, as its batch is timed as a whole, got "
            f"{len(devices)}: start a process for each, with its own CUDA_VISIBLE_DEVICES"
        )
