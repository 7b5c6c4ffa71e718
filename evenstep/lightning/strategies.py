"""The strategies of Lightning: which of them can be balanced."""

from __future__ import annotations

import warnings
from typing import Any

from evenstep.errors import InvalidSetting
from evenstep.lightning.package import package_of

SHARDED = ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")
"""Strategies in which workers wait for each other layer by layer, or share one batch."""


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
