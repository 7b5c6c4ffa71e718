"""The balancer of MXNet workers that share a kvstore: the object that a training script uses.

The iterator begins every iteration; the exchange, around a Trainer's step or a Module's update,
ends it. Each worker pushes its report with its gradients, as one more key that the servers sum.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mxnet as mx

from evenstep.errors import InvalidSetting
from evenstep.mxnet.collective import StoreCollective
from evenstep.mxnet.data_iter import BalancedLoader, DealtIter
from evenstep.mxnet.sources import Arrays
from evenstep.mxnet.store import WeightedStore
from evenstep.mxnet.transfer_timer import TransferTimer
from evenstep.training.balancer_base import BalancerBase
from evenstep.training.epochs import DealingOptions
from evenstep.training.loop_setup import make_loop
from evenstep.training.settings import Options, check_names

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Balancer(BalancerBase):
    """Balances the workers of a kvstore, `dist_sync` or, with one of them, `local`.

    `total` is X, the samples of all workers in one iteration. `reduction` says what gradients are
    over a batch: `sum`, as Gluon's losses and Module's outputs have it, or `mean`, where the loop
    takes the mean of the losses. `min_trainable` is the smallest batch that the model can be
    trained on. The other settings are those of every framework: `mode`, `policy`, `coordinator` and
    so on. All workers must make one, before the Trainer or Module.
    """

    def __init__(
        self,
        kvstore: Any,
        total: int,
        *,
        reduction: str = "sum",
        context: Any = None,
        min_trainable: int = 1,
        **options: Unpack[Options],
    ) -> None:
        check_names(options, Options.__optional_keys__)
        check_reduction(reduction)
        store = mx.kvstore.create(kvstore) if isinstance(kvstore, str) else kvstore
        check_store(store)
        self._context = context or mx.context.current_context()
        self._timer = options["timer"] = TransferTimer(options.get("timer"))
        self._collective = StoreCollective(store)
        self._loop = make_loop(
            self._collective, total, framework="mxnet", device=self._context.device_type,
            min_trainable=min_trainable, **options,
        )  # fmt: skip
        self._loop.agree({"reduction": reduction})
        self._reduction = reduction
        self.kvstore = WeightedStore(store)
        """The kvstore to pass to the Trainer, or to the Module."""

    def iter(
        self,
        data: Arrays,
        label: Arrays = None,
        *,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **dealing: Unpack[DealingOptions],
    ) -> DealtIter:
        """Return this worker's batches of some arrays; replaces an `mx.io.NDArrayIter`.

        The options are `shuffle`, `seed`, `drop_last` and `pad`. All workers must call it.
        """
        batches = DealtIter(
            data, label, total=self.total, worker=self.worker, num_workers=self.num_workers,
            minimum=self._loop.minimum, min_trainable=self._loop.min_trainable, data_name=data_name,
            label_name=label_name, loop=self._loop, **dealing,
        )  # fmt: skip
        self._loop.agree(batches.epochs.common_settings)
        return batches

    def loader(
        self,
        dataset: Any,
        batchify_fn: Callable[[list[Any]], Any] | None = None,
        **dealing: Unpack[DealingOptions],
    ) -> BalancedLoader:
        """Return this worker's batches of a Gluon data set; replaces a DataLoader.

        The options are `shuffle`, `seed`, `drop_last` and `pad`. All workers must call it.
        """
        loader = BalancedLoader(dataset, self._loop, batchify_fn, **dealing)
        self._loop.agree(loader.epochs.common_settings)
        return loader

    def step(self, trainer: Any, ignore_stale_grad: bool = False) -> None:
        """Exchange gradients and update parameters; replaces ``trainer.step(batch_size)``."""
        check_trainer(trainer, self.kvstore)
        with self.exchanging():
            trainer.step(self._divisor, ignore_stale_grad)

    def update(self, module: Any) -> None:
        """Exchange gradients and update parameters; replaces ``module.update()``."""
        self._update(module, module.update)

    def fit(self, module: Any, batches: DealtIter, **settings: Any) -> None:
        """Train a module; replaces ``module.fit(batches, kvstore=..., **settings)``."""
        optimizer = settings.get("optimizer", "sgd")
        if isinstance(optimizer, str):
            given = dict(settings.get("optimizer_params", {"learning_rate": 0.01}))
            settings["optimizer_params"] = {"rescale_grad": 1 / self._divisor} | given
        stock = module.update
        module.update = lambda: self._update(module, stock)
        try:
            module.fit(batches, kvstore=self.kvstore, **settings)
        finally:
            del module.update

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Exchange the gradients pushed to `kvstore` within the block, and end the iteration.

        Leaves the block when every worker has pushed, and this one has pulled.
        """
        self.kvstore.open(self._factor)
        try:
            yield
            self.kvstore.wait_for_gradients()
            self._loop.finish(used_memory(self._context))
            slots = self._loop.slots()
            self._collective.push(slots)
            # A push is acknowledged when all workers have pushed: workers wait here.
            mx.nd.waitall()
            begun = time.perf_counter()
            self.kvstore.pull_all()
            mx.nd.waitall()
            self._timer.pulled(time.perf_counter() - begun)
            self._loop.take(self._collective.pull(slots))
        finally:
            self.kvstore.close()

    @property
    def _divisor(self) -> int:
        """The constant by which the optimizer divides the summed gradients."""
        return self.total if self._reduction == "sum" else 1

    @property
    def _factor(self) -> float:
        """The factor of this worker's gradients before they are summed."""
        if self._reduction == "mean":
            return self._loop.weight
        # At the end of an epoch there are fewer samples than the divisor.
        return self._loop.weight * self.total / max(self._loop.samples, 1)

    def _update(self, module: Any, update: Callable[[], None]) -> None:
        check_module(module, self.kvstore, self._divisor)
        with self.exchanging():
            update()


def used_memory(context: Any) -> float | None:
    """Return the share of a GPU's memory that is in use; None on a CPU, whose memory is shared.

    MXNet keeps the memory that it has allocated, so that this is the share at its peak.

    >>> used_memory(mx.cpu())
    """
    if context.device_type != "gpu":
        return None
    free, total = mx.context.gpu_memory_info(context.device_id)
    return float(1 - free / total)


_STORES = ("dist_sync", "dist_device_sync", "dist_sync_device", "local", "device")
_REDUCTIONS = ("sum", "mean")


def check_reduction(reduction: str) -> None:
    """Raise InvalidSetting unless gradients are sums or means.

    >>> check_reduction("max")
    Traceback (most recent call last):
    evenstep.errors.InvalidSetting: reduction must be one of sum, mean, got 'max'
    """
    if reduction not in _REDUCTIONS:
        raise InvalidSetting(
            f"reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}"
        )


def check_store(store: Any) -> None:
    """Raise InvalidSetting unless it is a kvstore that sums the pushes of all workers."""
    if not isinstance(store, mx.kvstore.KVStore):
        raise InvalidSetting(
            f"kvstore must be one that mx.kvstore.create makes, got {type(store).__name__}"
        )
    if store.type not in _STORES:
        raise InvalidSetting(
            f"kvstore must be one of {', '.join(_STORES)}, as all workers have to wait for each "
            f"other, got {store.type!r}"
        )


def check_trainer(trainer: Any, kvstore: Any) -> None:
    """Raise InvalidSetting unless a Trainer was given the balancer's kvstore."""
    given = trainer._kvstore_params["kvstore"]
    if given is not kvstore:
        raise InvalidSetting(
            "the Trainer must be made with kvstore=balancer.kvstore, got "
            f"{given if isinstance(given, str) else type(given).__name__}"
        )


def check_module(module: Any, kvstore: Any, divisor: int) -> None:
    """Raise InvalidSetting unless a Module has the balancer's kvstore and the right divisor."""
    if module._kvstore is not kvstore:
        raise InvalidSetting(
            "the Module must be given init_optimizer(kvstore=balancer.kvstore), got "
            f"{type(module._kvstore).__name__}"
        )
    rescale = module._optimizer.rescale_grad
    if abs(rescale * divisor - 1) > 1e-9:
        raise InvalidSetting(
            f"rescale_grad of the Module's optimizer must be 1 / {divisor}, got {rescale:g}: give "
            f"optimizer_params={{'rescale_grad': 1 / {divisor}, ...}}"
        )
