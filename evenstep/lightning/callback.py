"""The callback: balances the training of a Lightning Trainer.

Lightning prepares loaders, reduces logged values and saves modules by methods of its strategy. The
callback replaces these on the Trainer's strategy while it fits, and so needs no strategy of its
own.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from evenstep.core import SavedState, sealed
from evenstep.errors import InvalidSetting, StateFileError
from evenstep.lightning.batch_values import BatchValues
from evenstep.lightning.train_loader import make_train_loader, total_of
from evenstep.lightning.trainers import Callback, can_balance
from evenstep.pytorch import Balancer, StreamLoader
from evenstep.pytorch.loader_options import LoaderOptions


class EvenstepCallback(Callback):  # type: ignore[misc]
    """Sizes each worker's batch so that all workers finish their iteration together.

    `total` is X, the samples of all workers in one iteration: the batch size of the train loader
    times the number of workers, which is the default. `loader` has options of `Balancer.loader`,
    such as `seed_samples`. Everything else is an option of a `Balancer`.
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
        self._values = BatchValues()
        self._to_restore: Mapping[str, Any] = {}
        """The state of a checkpoint, until there are a balancer and a loader."""
        self._is_positioned = False
        """Whether the loader begins at the position of a checkpoint."""
        self._has_new_buffers = False
        """Whether there was training since buffers were averaged."""
        self._undo: ExitStack | None = None

    @property
    def balancer(self) -> Balancer:
        """The balancer, from the preparation of the train loader to the end of the fit."""
        if self._balancer is None:
            raise InvalidSetting("the callback has a balancer while a Trainer fits, got none now")
        return self._balancer

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        mode = self._options.get("mode", "balanced")
        if stage != "fit" or not can_balance(trainer, mode):
            return
        # First in line, so that other callbacks log in a batch that has begun, and see averages.
        trainer.callbacks.remove(self)
        trainer.callbacks.insert(0, self)
        self._undo = ExitStack()
        values = self._values
        values.attach(trainer, pl_module)
        strategy = trainer.strategy
        process, state_dict = strategy.process_dataloader, strategy.lightning_module_state_dict

        def process_dataloader(dataloader: Any) -> Any:
            processed = process(dataloader)
            return self._balanced(trainer, processed) if trainer.training else processed

        def averaged_state_dict() -> Any:
            self._average_buffers()
            return state_dict()

        self._replace(strategy, "process_dataloader", process_dataloader)
        self._replace(strategy, "lightning_module_state_dict", averaged_state_dict)
        self._replace(strategy, "reduce", values.reduce)
        self._replace(strategy, "all_gather", values.all_gather)
        self._replace(pl_module, "log", values.log)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._check_loaders(trainer)
        self._check_position(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        # Once more, as Lightning may have asked for loaders again.
        self._check_loaders(trainer)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._balancer is not None:
            self._values.begin(self._balancer)
            self._has_new_buffers = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._values.end()
        self._average_buffers()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._average_buffers()

    def state_dict(self) -> dict[str, Any]:
        """Return what the balancer has learned, and the position of the loader."""
        if self._balancer is None:
            return dict(self._to_restore)
        states = {"balancer": self._balancer.state_dict(), "loaders": self._states_of_loaders()}
        return sealed(states)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them, once there are a balancer and a loader."""
        if state_dict:
            SavedState("a callback", state_dict, "balancer", "loaders").items("loaders")
        self._to_restore = state_dict

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        # The state of the callback has the position of the loader. A Trainer without Evenstep,
        # whose loaders have no state, would refuse another copy.
        checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def _balanced(self, trainer: Any, loader: Any) -> Any:
        """Return a loader of the balancer, in place of a train loader."""
        total = total_of(loader, trainer.world_size)
        if self._balancer is None:
            self._balancer = Balancer(trainer.strategy.model, self._total or total, **self._options)
            if "balancer" in self._to_restore:
                self._balancer.load_state_dict(self._to_restore["balancer"])
        self._loader = make_train_loader(self._balancer, trainer, loader, self._loader_options)
        states, self._to_restore = self._to_restore.get("loaders"), {}
        if states:
            self._is_positioned = True
            self._loader.load_state_dict(self._own(states))
        return self._loader

    def _own(self, states: list[Any]) -> Any:
        """Return the state of this worker: that of all, or one of as many as there are workers."""
        if len(states) not in (1, self.balancer.num_workers):
            raise StateFileError(
                "a checkpoint of streams must be continued by as many workers as have made it, "
                f"{len(states)}, got {self.balancer.num_workers}"
            )
        return states[self.balancer.worker if len(states) > 1 else 0]

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
        loaders = [] if self._balancer is None else tree_leaves(trainer.train_dataloader)
        if len(loaders) > 1:
            raise InvalidSetting(
                "a training must have one train loader, as an iteration is one batch of every "
                f"worker, got {len(loaders)}: join their data sets"
            )

    def _check_position(self, trainer: Any) -> None:
        """Warn if a checkpoint in mid-epoch has no position, as one of a stock Trainer."""
        if self._balancer is None or self._is_positioned or trainer.ckpt_path is None:
            return
        done = trainer.fit_loop.batch_idx + 1
        if 0 < done < trainer.num_training_batches:
            warnings.warn(
                f"the checkpoint was made after {done} of {trainer.num_training_batches} batches "
                "of an epoch, without Evenstep: as without it, the rest of the epoch begins with "
                "its first samples again",
                stacklevel=2,
            )

    def _average_buffers(self) -> None:
        """Average buffers such as BatchNorm's statistics, if they may have changed."""
        if self._has_new_buffers:
            self._has_new_buffers = False
            self.balancer.average_buffers()

    def _replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Replace a method of an object until the fit ends."""
        assert self._undo is not None
        setattr(owner, name, function)
        self._undo.callback(delattr, owner, name)

    def _close(self) -> None:
        """End the balancer, and restore the methods that were replaced."""
        if self._undo is not None:
            self._undo.close()
        if self._balancer is not None:
            self._balancer.close()
        self._values.end()
        self._undo = self._balancer = self._loader = None
        self._has_new_buffers = self._is_positioned = False


def make_callbacks() -> list[EvenstepCallback]:
    """Return a callback with the default settings if `EVENSTEP=1` is set, otherwise none.

    Lightning calls it for every Trainer, by its entry point for factories of callbacks.
    """
    value = os.environ.get("EVENSTEP", "0")
    if value not in ("", "0", "1"):
        raise InvalidSetting(f"EVENSTEP must be 0 or 1 in the environment, got {value!r}")
    return [EvenstepCallback()] if value == "1" else []
