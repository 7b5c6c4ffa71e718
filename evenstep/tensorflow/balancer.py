"""The balancer of a training loop under MultiWorkerMirroredStrategy.

Written to the API and tested with a stand-in; not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.client import device_lib

from evenstep.tensorflow.balancer_base import BalancerBase
from evenstep.tensorflow.collective import StrategyCollective
from evenstep.tensorflow.dataset import BalancedDataset
from evenstep.tensorflow.fetching import Map
from evenstep.tensorflow.summing import Gradient
from evenstep.tensorflow.update import Update, wait_for
from evenstep.training.epochs import DealingOptions
from evenstep.training.loop import Loop
from evenstep.training.loop_setup import make_loop
from evenstep.training.settings import Options, check_names

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Balancer(BalancerBase):
    """Balances a loop over the workers of a strategy, each with one device.

    `total` is X, the samples of all workers in one iteration; everything else has a default, and
    is what it is for `evenstep.pytorch.Balancer`: mode, shares, policy, predictor, minimum,
    maximum, granularity, coordinator, log, name, summary, warm_up, timer. `min_trainable` is the
    smallest batch that the model can be trained on. All workers must make one.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        total: int,
        *,
        min_trainable: int = 1,
        **options: Unpack[Options],
    ) -> None:
        self._strategy = strategy
        self._loop, self._memory = loop_of(strategy, total, min_trainable, options)
        self._updates: dict[tuple[int, ...], Update] = {}

    def dataset(
        self, tensors: Any, map: Map | None = None, **how: Unpack[DealingOptions]
    ) -> BalancedDataset:
        """Return this worker's batches of some samples, as `from_tensor_slices` takes them.

        `map` is applied to each sample (a file name, say) by tf.data, in parallel. The options are
        `shuffle`, `seed`, `drop_last` and `pad`. All workers must call it.
        """
        return BalancedDataset(self._loop, tensors, map, **how)

    def apply(
        self, optimizer: Any, gradients: Sequence[Gradient], variables: Sequence[Any]
    ) -> None:
        """Apply the gradient of the joined batch, given those of the mean over this worker's batch.

        Replaces ``optimizer.apply(gradients, variables)``, outside of `strategy.run`. The batch
        processing time ends here, as soon as this worker's gradients are computed.
        """
        wait_for(gradients)
        self._loop.finish(None if self._memory is None else self._memory.read())
        update = self._update_of(optimizer, variables)
        self._loop.take(update(gradients, self._loop.weight, self._loop.slots()))

    def _update_of(self, optimizer: Any, variables: Sequence[Any]) -> Update:
        # The update keeps optimizer and variables alive, so that their ids stay unique.
        key = id(optimizer), *map(id, variables)
        if key not in self._updates:
            self._updates[key] = Update(self._strategy, optimizer, variables)
        return self._updates[key]


def loop_of(
    strategy: tf.distribute.Strategy, total: int, min_trainable: int, options: Options
) -> tuple[Loop, DeviceMemory | None]:
    """Return the loop of this worker of a strategy, and the memory of its device if it is a GPU."""
    check_names(options, Options.__optional_keys__)
    # First, as it refuses strategies that have no such devices.
    collective = StrategyCollective(strategy)
    device = device_kind(strategy.extended.worker_devices[0])
    loop = make_loop(
        collective,
        total,
        framework="tensorflow",
        device=device,
        min_trainable=min_trainable,
        **options,
    )
    return loop, DeviceMemory() if device == "gpu" else None


_DEVICE = "GPU:0"
"""A worker has one device."""


class DeviceMemory:
    """The peak of the GPU memory that TensorFlow has used since the last reading."""

    def __init__(self) -> None:
        self._capacity = capacity_of(_DEVICE)

    def read(self) -> float | None:
        peak = tf.config.experimental.get_memory_info(_DEVICE)["peak"]
        tf.config.experimental.reset_memory_stats(_DEVICE)
        return min(1.0, peak / self._capacity) if self._capacity else None


def capacity_of(device: str) -> int:
    """Return the bytes of a device's memory that TensorFlow may use; 0 where unknown."""
    for found in device_lib.list_local_devices():
        if found.name.endswith(device):
            return int(found.memory_limit)
    return 0


def device_kind(name: str) -> str:
    """Return the kind of a device from its name.

    >>> device_kind("/job:worker/replica:0/task:0/device:CPU:0")
    'cpu'
    """
    kind = tf.DeviceSpec.from_string(name).device_type
    return "cpu" if kind is None else str(kind).lower()
