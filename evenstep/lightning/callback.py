"""The callback: balances the training of a Lightning Trainer.

Lightning prepares its loaders, and reduces logged values, by methods of its strategy. The callback
replaces three of them while the Trainer fits:

- `process_dataloader`, to return a loader of the balancer in place of the train loader;
- `reduce`, to weigh the means of a batch by samples, and not to count the wait as work;
- `lightning_module_state_dict`, to average the buffers first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist

from evenstep.errors import InvalidSetting
from evenstep.lightning.package import pl
from evenstep.lightning.strategies import can_balance
from evenstep.lightning.train_loader import make_train_loader, total_of
from evenstep.pytorch import Balancer, StreamLoader
from evenstep.pytorch.loader_options import LoaderOptions


class EvenstepCallback(pl.Callback):  # type: ignore[misc]
    """Sizes each worker's batch so that all workers finish their iteration together.

    `total` is X, the samples of all workers in one iteration; by default, and if given, it is the
    batch size of the train loader times the number of workers. `loader` has options of
    `Balancer.loader`, such as `seed_samples`. Everything else is an option of a `Balancer`.
    """

    def __init__(
        self, total: int | None = None, *, loader: LoaderOptions | None = None, **options: Any
    ) -> None:
        super().__init__()
        if options.get("micro_batches"):
            raise InvalidSetting(
                "micro_batches must be left out, as Lightning runs the backward pass itself and "
                "not through balancer.backward"
            )
        self._total = total
        self._loader_options: LoaderOptions = loader or {}
        self._options = options
        self._balancer: Balancer | None = None
        self._loader: Any = None
        self._to_restore: Mapping[str, Any] = {}
        """The state of a checkpoint, until there are a balancer and a loader."""
        self._is_in_batch = False
        """Whether values that are reduced now belong to a batch, and not to an epoch."""
        self._has_new_buffers = False
        """Whether there was training since buffers were averaged."""
        self._undo: ExitStack | None = None

    @property
    def balancer(self) -> Balancer:
        """The balancer, from the preparation of the train loader to the end of the fit."""
        if self._balancer is None:
            raise InvalidSetting("the callback has a balancer while a Trainer fits, got none yet")
        return self._balancer

    # Hooks of Lightning.

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit" or not can_balance(trainer):
            return
        # First in line: the others see averaged buffers, and log after a batch has begun.
        trainer.callbacks.remove(self)
        trainer.callbacks.insert(0, self)
        self._undo = ExitStack()
        strategy = trainer.strategy
        process, reduce = strategy.process_dataloader, strategy.reduce
        state_dict, log = strategy.lightning_module_state_dict, pl_module.log

        def process_dataloader(dataloader: Any) -> Any:
            processed = process(dataloader)
            return self._balanced(trainer, processed) if trainer.training else processed

        def reduce_weighted(tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
            if trainer.training and self._is_mean_of_batch(tensor, group, reduce_op):
                return torch.full_like(tensor, self.balancer.mean(tensor))
            return reduce(tensor, group, reduce_op)

        def averaged_state_dict() -> Any:
            self._average_buffers()
            return state_dict()

        def checked_log(name: str, *values: Any, **settings: Any) -> None:
            if trainer.training:
                self._check_logged(name, settings.get("batch_size"))
            log(name, *values, **settings)

        self._replace(strategy, "process_dataloader", process_dataloader)
        self._replace(strategy, "reduce", reduce_weighted)
        self._replace(strategy, "lightning_module_state_dict", averaged_state_dict)
        self._replace(pl_module, "log", checked_log)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._check_loaders(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        # Once more, as loaders may have been made again.
        self._check_loaders(trainer)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self._is_in_batch = self._has_new_buffers = self._balancer is not None

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._is_in_batch = False
        self._average_buffers()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._average_buffers()

    def state_dict(self) -> dict[str, Any]:
        """Return what the balancer has learned and the position of the loader."""
        if self._balancer is None:
            return dict(self._to_restore)
        return {"balancer": self._balancer.state_dict(), "loaders": self._states_of_loaders()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them, once there are a balancer and a loader."""
        self._to_restore = state_dict

    def on_save_checkpoint(
        self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]
    ) -> None:
        # The state of the callback has the position of the loader. A Trainer without Evenstep, whose
        # loaders have no state, would refuse a second copy.
        checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    # What the hooks do.

    def _balanced(self, trainer: Any, loader: Any) -> Any:
        """Return a loader of the balancer in place of a train loader."""
        total = total_of(loader, trainer.world_size)
        if self._balancer is None:
            self._balancer = Balancer(
                trainer.strategy.model, self._total or total, **self._options
            )
            if "balancer" in self._to_restore:
                self._balancer.load_state_dict(self._to_restore["balancer"])
        self._loader = make_train_loader(self._balancer, loader, self._loader_options)
        states, self._to_restore = self._to_restore.get("loaders"), {}
        if states is not None:
            own = self._balancer.worker if len(states) > 1 else 0
            self._loader.load_state_dict(states[own])
        return self._loader

    def _states_of_loaders(self) -> list[Any]:
        """Return one state for all workers, or one for each of them if they read streams."""
        state = self._loader.state_dict()
        if not isinstance(self._loader, StreamLoader):
            return [state]
        states: list[Any] = [None] * self.balancer.num_workers
        dist.all_gather_object(states, state)
        return states

    def _check_loaders(self, trainer: Any) -> None:
        """Raise InvalidSetting if there are several train loaders."""
        if self._balancer is None:
            return
        leaves = torch.utils._pytree.tree_leaves(trainer.train_dataloader)
        if len(leaves) > 1:
            raise InvalidSetting(
                "a training must have one train loader, as an iteration is one batch of every "
                f"worker, got {len(leaves)}: join their data sets"
            )

    def _is_mean_of_batch(self, tensor: Any, group: Any, reduce_op: Any) -> bool:
        """Whether this is the mean over a batch, which must be weighed by its samples."""
        if not (self._is_in_batch and reduce_op in ("mean", "avg") and torch.is_tensor(tensor)):
            return False
        if group is not None:
            raise InvalidSetting(
                "means over a batch must be those of all workers, as they are weighed by the "
                f"samples of all, got the group {group!r}: leave sync_dist_group out"
            )
        return tensor.numel() == 1 and tensor.is_floating_point()

    def _check_logged(self, name: str, batch_size: int | None) -> None:
        """Warn if a value is logged with the batch size of a stock Trainer."""
        if not self._is_in_batch or batch_size is None:
            return
        samples, even = self.balancer.batch_size, self.balancer.total // self.balancer.num_workers
        if batch_size == even != samples:
            warnings.warn(
                f"self.log({name!r}, ..., batch_size={batch_size}) is called for a batch of "
                f"{samples} samples: give the number of samples of the batch, or leave it out, as "
                "the mean over an epoch is weighed by it",
                stacklevel=3,
            )

    def _average_buffers(self) -> None:
        """Average buffers such as BatchNorm's statistics, if they have changed."""
        if self._has_new_buffers:
            self._has_new_buffers = False
            self.balancer.average_buffers()

    def _replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Replace a method of an object, until the fit ends."""
        assert self._undo is not None
        setattr(owner, name, function)
        self._undo.callback(delattr, owner, name)

    def _close(self) -> None:
        """End the balancer, and give Lightning its methods back."""
        if self._undo is not None:
            self._undo.close()
        if self._balancer is not None:
            self._balancer.close()
        self._undo = self._balancer = self._loader = None
        self._is_in_batch = self._has_new_buffers = False
