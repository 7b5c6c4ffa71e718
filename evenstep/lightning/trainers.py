"""The Trainers of Lightning: the package they come from, which has two names, and strategies."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from evenstep.errors import InvalidSetting

NAMES = {"lightning.pytorch": "lightning.fabric", "pytorch_lightning": "lightning_fabric"}
"""The two names of the package, each with that of Fabric, on which it is built."""
SHARDED = ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")
"""Strategies in which workers wait for each other layer by layer, or share one batch."""


def _choose() -> str:
    """Return the name under which the script has imported Lightning, or one that is installed."""
    loaded = [name for name in NAMES if name in sys.modules]
    if loaded:
        return loaded[0]
    is_other = find_spec("lightning") is None and find_spec("pytorch_lightning") is not None
    return "pytorch_lightning" if is_other else "lightning.pytorch"


Callback: Any = import_module(_choose()).Callback


def package_of(trainer: Any) -> Any:
    """Return the package that a Trainer comes from; its own class may be one of the user's."""
    return import_module(_name_of(trainer))


def fabric_of(trainer: Any, module: str) -> Any:
    """Return a module of the Fabric that the package of a Trainer is built on."""
    return import_module(f"{NAMES[_name_of(trainer)]}.{module}")


def _name_of(trainer: Any) -> str:
    modules = [base.__module__ for base in type(trainer).__mro__]
    return next(name for name in NAMES for module in modules if module.startswith(name))


def can_balance(trainer: Any, mode: str) -> bool:
    """Whether a Trainer trains with DDP on several workers; warns if it does not.

    Raises InvalidSetting where models are divided between the workers, and for SyncBatchNorm.
    """
    strategy, known = trainer.strategy, package_of(trainer).strategies
    # Some are subclasses of DDPStrategy.
    if any(isinstance(strategy, getattr(known, name, ())) for name in SHARDED):
        raise InvalidSetting(
            f"the strategy must be DDP, with a whole model on every worker, got "
            f"{type(strategy).__name__}: a model with fully_shard goes into a ShardedBalancer, in "
            "a loop of your own"
        )
    if isinstance(strategy, known.DDPStrategy) and trainer.world_size > 1:
        # A private name, for an early and clear error. If it is gone, the balancer raises one.
        if getattr(strategy, "_layer_sync", None) is not None and mode != "off":
            raise InvalidSetting(
                f"sync_batchnorm must be False in mode {mode!r}, got True: SyncBatchNorm waits for "
                "the other workers in the forward pass, and is right for equal batches only"
            )
        return True
    warnings.warn(
        "Evenstep balances DDP on several workers and leaves this training as it is: "
        f"{type(strategy).__name__} with {trainer.world_size} worker"
        f"{'s' if trainer.world_size > 1 else ''}",
        stacklevel=2,
    )
    return False
