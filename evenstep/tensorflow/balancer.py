"""The balancer of a training loop under MultiWorkerMirroredStrategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from evenstep.tensorflow.dataset import BalancedDataset
from evenstep.tensorflow.fetching import Map
from evenstep.tensorflow.memory import DeviceMemory, device_kind
from evenstep.tensorflow.strategy_meeting import StrategyMeeting
from evenstep.tensorflow.summing import Gradient
from evenstep.tensorflow.told import Told
from evenstep.tensorflow.updating import Update, wait_for
from evenstep.training.epochs import DealingOptions
from evenstep.training.loop import Loop
from evenstep.training.making import make_loop
from evenstep.training.settings import Options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Balancer(Told):
    """Balances a loop over the workers of a strategy, each with one device.

    `total` is X, the samples of all workers in one iteration; everything else has a default, and
    is what it is for `evenstep.pytorch.Balancer`: mode, shares, policy, predictor, minimum,
    maximum, granularity, coordinator, log, name, summary, warm_up, timer. `fewest` is the smallest
    batch that the model can be trained on. All workers must make one.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        total: int,
        *,
        fewest: int = 1,
        **options: Unpack[Options],
    ) -> None:
        self._strategy = strategy
        self._loop, self._memory = loop_of(strategy, total, fewest, options)
        self._updates: dict[tuple[int, ...], Update] = {}

    def dataset(
        self, tensors: Any, map: Map | None = None, **how: Unpack[DealingOptions]
    ) -> BalancedDataset:
        """Return this worker's batches of some samples, as `from_tensor_slices` takes them.

        `map` is applied to each sample, by tf.data and in parallel: to names of files, say. Takes
        `shuffle`, `seed` and `drop_last`, too. All workers must call it.
        """
        return BalancedDataset(self._loop, tensors, map, **how)

    def apply(
        self, optimizer: Any, gradients: Sequence[Gradient], variables: Sequence[Any]
    ) -> None:
        """Apply the gradient of the joined batch, from those of the mean over this worker's batch.

        In place of ``optimizer.apply(gradients, variables)``, outside of `strategy.run`. This
        worker's own work ends here, as soon as its gradients are there.
        """
        wait_for(gradients)
        self._loop.finish(None if self._memory is None else self._memory.read())
        update = self._update_of(optimizer, variables)
        self._loop.take(update(gradients, self._loop.weight, self._loop.slots()))

    def _update_of(self, optimizer: Any, variables: Sequence[Any]) -> Update:
        # It keeps what it is made of, so that nothing else can get these ids.
        key = id(optimizer), *map(id, variables)
        if key not in self._updates:
            self._updates[key] = Update(self._strategy, optimizer, variables)
        return self._updates[key]


def loop_of(
    strategy: tf.distribute.Strategy, total: int, fewest: int, options: Options
) -> tuple[Loop, DeviceMemory | None]:
    """Return the loop of this worker of a strategy, and the memory of its device, if it has any."""
    meeting = StrategyMeeting(strategy)
    device = device_kind(strategy.extended.worker_devices[0])
    loop = make_loop(
        meeting, total, framework="tensorflow", device=device, fewest=fewest, **options
    )
    return loop, DeviceMemory() if device == "gpu" else None
