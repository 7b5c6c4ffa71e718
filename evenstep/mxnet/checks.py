"""Checks of what a balancer is given: each would otherwise train on something else, silently."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from evenstep.errors import InvalidSetting

_STORES = ("dist_sync", "dist_device_sync", "dist_sync_device", "local", "device")
_REDUCTIONS = ("sum", "mean")


def check_reduction(reduction: str) -> None:
    """Raise InvalidSetting unless gradients are known to be sums or means.

    >>> check_reduction("max")
    Traceback (most recent call last):
    evenstep.errors.InvalidSetting: reduction must be one of sum, mean, got 'max'
    """
    if reduction not in _REDUCTIONS:
        raise InvalidSetting(
            f"reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}"
        )


def check_store(store: Any) -> None:
    """Raise InvalidSetting unless it is a kvstore that sums what all workers push."""
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
    """Raise InvalidSetting unless a Module's optimizer divides by what is summed over."""
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
