"""`model.fit`, balanced: one callback, and one call for the data set.

Everything happens within Keras's own training function: the data set begins an iteration when the
function asks for its batch, and the optimizer ends it when the local gradients are computed. Both
call back into Python, so that the function is traced once, as without them.

Keras lets a strategy distribute a data set, which splits batches, shards them, and prefetches. It
uses a data set that is distributed already as it is, so the data set here claims to be one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from evenstep.core import Ints, SavedState, sealed
from evenstep.errors import InvalidSetting
from evenstep.tensorflow.balancer import loop_of
from evenstep.tensorflow.balancer_base import BalancerBase, average_buffers
from evenstep.tensorflow.fetching import INDICES, Map, TensorSamples
from evenstep.tensorflow.summing import Gradient, dense, summed_already, weighted_sums
from evenstep.training.epochs import DealingOptions, Epochs, SavedPosition
from evenstep.training.settings import Options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class FitBalancer(BalancerBase, keras.callbacks.Callback):  # type: ignore[misc]
    """Balances `model.fit` over the workers of the model's strategy, each with one device.

    The settings are those of `Balancer`. Pass it to `fit` as a callback, and the data set that
    `dataset` returns as the first argument; `validation_data` is what `validation` returns.
    """

    def __init__(
        self, model: keras.Model, total: int, *, min_trainable: int = 1, **options: Unpack[Options]
    ) -> None:
        super().__init__()
        self._strategy = model.distribute_strategy
        self._loop, self._memory = loop_of(self._strategy, total, min_trainable, options)
        self._epochs: Epochs | None = None
        self._saved_epochs: Mapping[str, Any] | None = None
        self._apply: Any = None
        self._train_step: Any = None
        self._test_step: Any = None
        self._is_training = False
        self._failure: Exception | None = None

    @property
    def total(self) -> int:
        """X: samples of all workers in one iteration."""
        return self._loop.total

    @total.setter
    def total(self, total: int) -> None:
        raise InvalidSetting(
            f"total must stay {self._loop.total} with fit, as Keras fixes the number of iterations "
            f"of an epoch, got {total}"
        )

    def dataset(self, tensors: Any, map: Map | None = None, **how: Unpack[DealingOptions]) -> Any:
        """Return this worker's batches of some samples, for `fit`; as `Balancer.dataset`."""
        samples = TensorSamples(tensors, map)
        epochs = Epochs.of_loop(self._loop, samples.count, **how)
        self._loop.agree(epochs.common_settings)
        self._epochs = epochs
        self._restore_epochs()
        return for_fit(self._deals, samples, len(epochs))

    def validation(self, tensors: Any, map: Map | None = None) -> Any:
        """Return this worker's part of some samples, for `validation_data` or `model.evaluate`.

        Each sample counts once, in the mean over all workers. `evaluate` takes this object as a
        callback. All workers must call it.
        """
        samples, loop = TensorSamples(tensors, map), self._loop
        loop.agree({"number of samples to validate": samples.count})
        parts = parts_of(samples.count, loop.total, loop.num_workers)[loop.worker]
        return for_fit(lambda: iter(parts), samples, len(parts))

    def on_train_begin(self, logs: Any = None) -> None:
        epochs = self._check()
        # Keras trains whole epochs, so an interrupted one starts from its beginning.
        epochs.go_to(epochs.epoch, 0, 0)
        self._release()
        self._failure = None
        self._apply, self._train_step = self.model.optimizer.apply, self.model.train_step
        self.model.optimizer.apply, self.model.train_step = self._applied, self._trained
        # A function traced before would not call the replacements.
        self.model.make_train_function(force=True)
        self._is_training = True
        self._replace_test_step()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._failure is not None:
            raise self._failure

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        assert self._epochs is not None
        self._epochs.end()
        average_buffers(self.model, self._loop)

    def on_train_end(self, logs: Any = None) -> None:
        self._release()
        self.model.make_train_function(force=True)
        self.model.make_test_function(force=True)

    def on_test_begin(self, logs: Any = None) -> None:
        if self._is_training:
            average_buffers(self.model, self._loop)
        else:
            self._replace_test_step()

    def on_test_end(self, logs: Any = None) -> None:
        if not self._is_training:
            self._release()
            self.model.make_test_function(force=True)

    def state_dict(self) -> dict[str, Any]:
        """Return everything learned, and the epoch, for a checkpoint between two epochs."""
        epochs = None if self._epochs is None else self._epochs.state_dict()
        return sealed({"loop": self._loop.state_dict(), "epochs": epochs})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; call it before or after `dataset`.

        A state that is refused changes nothing.
        """
        saved = SavedState("a balancer of fit", state, "loop", "epochs")
        if saved["epochs"] is not None:
            check = SavedPosition.of if self._epochs is None else self._epochs.check_state
            check(saved["epochs"])
        self._loop.load_state_dict(saved["loop"])
        self._saved_epochs = saved["epochs"]
        self._restore_epochs()

    def _restore_epochs(self) -> None:
        """Restore the epoch of a checkpoint, once there are both a checkpoint and data."""
        if self._epochs is None or self._saved_epochs is None:
            return
        self._epochs.load_state_dict(self._saved_epochs)
        self._saved_epochs = None
        # A callback that saves at the end of an epoch may have run before this one.
        if self._epochs.position == len(self._epochs):
            self._epochs.end()

    def _release(self) -> None:
        """Restore the methods of model and optimizer, also after a fit that failed."""
        self._is_training = False
        model = self.model
        for owner, name in (
            (model.optimizer, "apply"), (model, "train_step"), (model, "test_step")
        ):  # fmt: skip
            if name in vars(owner):
                delattr(owner, name)

    def _replace_test_step(self) -> None:
        self._test_step = self.model.test_step
        self.model.test_step = self._tested
        self.model.make_test_function(force=True)

    def _deals(self) -> Iterator[Ints]:
        """Yield the samples of this worker's batches to the end of the epoch.

        Keras takes one batch to inspect before it trains, so an iteration ends when its batch was
        trained on, not when the next batch is asked for.
        """
        epochs, loop = self._epochs, self._loop
        assert epochs is not None
        while True:
            if epochs.position == len(epochs):
                return
            dealt = epochs.deal(loop.begin().plan.sizes, loop.worker, loop.minimum)
            assert dealt is not None, "the epoch has not ended"
            loop.has_batch(dealt.sizes, dealt.position)
            yield dealt.samples.astype(np.int64)

    def _trained(self, batch: Any) -> Any:
        """Train on a batch, and return the logs of Keras with one more dimension.

        Keras averages them over workers along the first dimension, and scalars have none.
        """
        return _with_dimension(self._train_step(batch))

    def _tested(self, batch: Any) -> Any:
        """Evaluate a batch; its logs have one more dimension for the same reason."""
        return _with_dimension(self._test_step(batch))

    def _applied(self, gradients: Sequence[Gradient], variables: Any = None) -> None:
        """Apply the gradient of the joined batch; replaces the optimizer's own `apply`."""
        gradients = list(gradients)
        computed = [dense(gradient) for gradient in gradients if gradient is not None]
        # The argument of the call is surely computed then, on any device; the others are ordered
        # before it as far as TensorFlow allows.
        smallest = min(computed, key=lambda gradient: gradient.shape.num_elements() or 0)
        with tf.control_dependencies(computed):
            weight, slots = tf.numpy_function(self._finish, [smallest], [tf.float64, tf.float32])
        weight.set_shape(())
        slots.set_shape(self._loop.slots().shape)
        summed, rows = weighted_sums(gradients, weight, slots)
        tf.numpy_function(self._take, [rows], [])
        with summed_already(self.model.optimizer):
            self._apply(summed, variables)

    def _finish(self, gradient: Any) -> tuple[np.float64, Any]:
        del gradient
        self._loop.finish(None if self._memory is None else self._memory.read())
        assert self._epochs is not None
        self._epochs.advance()
        # Keras has divided the loss by the number of workers.
        weight = self._loop.num_workers * self._loop.weight
        return np.float64(weight), self._loop.slots()

    def _take(self, rows: Any) -> None:
        try:
            self._loop.take(rows)
        except Exception as failure:
            # Raised within a graph, it would become an error of TensorFlow.
            self._failure = failure

    def _check(self) -> Epochs:
        if self._epochs is None:
            raise InvalidSetting("fit must get the data set of FitBalancer.dataset, got another")
        if self.model.jit_compile:
            raise InvalidSetting(
                "jit_compile must be False, as XLA compiles again for every batch size, got True"
            )
        if self.model.steps_per_execution != 1:
            raise InvalidSetting(
                "steps_per_execution must be 1, as each iteration has a plan of its own, got "
                f"{self.model.steps_per_execution}"
            )
        if self.params["steps"] != len(self._epochs):
            raise InvalidSetting(
                f"steps_per_epoch must be that of the data set, {len(self._epochs)}, got "
                f"{self.params['steps']}"
            )
        return self._epochs


def parts_of(num_samples: int, total: int, num_workers: int) -> list[list[Ints]]:
    """Divide samples into the batches of each worker: as many for each, and none of them empty.

    They are of nearly the same size, `total` over all workers or somewhat more.

    >>> [[part.tolist() for part in parts] for parts in parts_of(7, total=3, num_workers=2)]
    [[[0, 1], [4, 5]], [[2, 3], [6]]]
    """
    if num_samples < num_workers:
        raise InvalidSetting(
            f"samples to validate must be at least one for each of {num_workers} workers, got "
            f"{num_samples}"
        )
    num_iterations = max(1, num_samples // total)
    parts = np.array_split(np.arange(num_samples, dtype=np.int64), num_iterations * num_workers)
    return [parts[worker::num_workers] for worker in range(num_workers)]


def _with_dimension(logs: Any) -> Any:
    return tf.nest.map_structure(lambda value: tf.reshape(value, (1,)), logs)


# Keras accepts a custom adapter for the data of `fit`, but does not export its base class.


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


def for_fit(
    deals: Callable[[], Iterator[Ints]], samples: TensorSamples, num_iterations: int
) -> Any:
    """Return the batches of the samples dealt out, in the form that Keras's `fit` takes."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    batches = tf.data.Dataset.from_generator(deals, output_signature=INDICES)
    batches = batches.map(samples.batch)
    batches = batches.apply(tf.data.experimental.assert_cardinality(num_iterations))
    return TFDatasetAdapter(_Distributed(batches.with_options(options)))
