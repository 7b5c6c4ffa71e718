"""Calls to Ray: each has a time limit and raises `Gone` if the actor is dead or silent.

Ray is imported inside the functions, so that the other modules can be imported without it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Handle = Any
"""A Ray actor."""
Ref = Any
"""A reference to a present or future result."""

SIGNALS = "signals"
"""The concurrency group of calls that an actor receives while it works."""


class Gone(Exception):
    """An actor died or did not answer in time."""


def start_actor(kind: type, *arguments: object, num_cpus: float = 0) -> Handle:
    """Start an actor that Ray does not restart: Evenstep does that."""
    import ray

    remote = ray.remote(
        num_cpus=num_cpus, max_restarts=0, max_task_retries=0, concurrency_groups={SIGNALS: 1}
    )
    return remote(kind).remote(*arguments)


def get(result: Ref | Sequence[Ref], patience: float) -> Any:
    """Return one or several results; an error in the actor's code is raised unchanged."""
    import ray
    from ray import exceptions

    try:
        return ray.get(result, timeout=patience)
    except exceptions.RayTaskError:
        raise
    except exceptions.GetTimeoutError:
        raise Gone(f"said nothing for {patience:g} s") from None
    except (exceptions.RayActorError, exceptions.ObjectLostError) as error:
        raise Gone(str(error).splitlines()[0]) from None


def first(results: Sequence[Ref], deadline: float) -> Ref | None:
    """Return the first available result, or None at the deadline (monotonic)."""
    import ray

    left = max(0.0, deadline - time.monotonic())
    ready, _ = ray.wait(list(results), num_returns=1, timeout=left, fetch_local=False)
    return ready[0] if ready else None


def keep(value: object) -> Ref:
    """Put a value into the object store, for all actors."""
    import ray

    return ray.put(value)


def fetch(result: Ref, patience: float) -> None:
    """Wait until a result is on this node, without reading it."""
    import ray

    ready, _ = ray.wait([result], timeout=patience)
    if not ready:
        raise Gone(f"said nothing for {patience:g} s")


def kill(handle: Handle) -> None:
    """Kill an actor if it is still running."""
    import ray

    with contextlib.suppress(Exception):
        ray.kill(handle, no_restart=True)


Arrays = list[npt.NDArray[Any]]


def pack(tensors: Sequence[torch.Tensor]) -> Arrays:
    return [tensor.detach().numpy() for tensor in tensors]


def unpack(arrays: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
    """Return tensors with copied data: arrays from Ray are read-only."""
    return [torch.from_numpy(np.array(array)) for array in arrays]
