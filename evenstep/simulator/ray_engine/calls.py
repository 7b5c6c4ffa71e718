"""Calls to Ray: each has a time limit, and an actor that is no more is one exception, `Gone`.

Ray is imported when it is called, so that the modules around this one can be read without it.
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
"""An actor of Ray's."""
Ref = Any
"""A result that is there, or still to come."""

SIGNALS = "signals"
"""The group of an actor's calls that are heard while it works."""


class Gone(Exception):
    """An actor died, or has said nothing for too long."""


def start_actor(kind: type, *arguments: object, num_cpus: float = 0) -> Handle:
    """Start an actor; it is not restarted by Ray, as we do that."""
    import ray

    remote = ray.remote(
        num_cpus=num_cpus, max_restarts=0, max_task_retries=0, concurrency_groups={SIGNALS: 1}
    )
    return remote(kind).remote(*arguments)


def get(result: Ref | Sequence[Ref], patience: float) -> Any:
    """Return a result, or several; an error of the actor's own code is raised as it is."""
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
    """Return the first result that is there; None if there is none at the deadline (monotonic)."""
    import ray

    left = max(0.0, deadline - time.monotonic())
    ready, _ = ray.wait(list(results), num_returns=1, timeout=left, fetch_local=False)
    return ready[0] if ready else None


def keep(value: object) -> Ref:
    """Put a value where all actors find it."""
    import ray

    return ray.put(value)


def fetch(result: Ref, patience: float) -> None:
    """Wait until a result is on this node, without reading it."""
    import ray

    ready, _ = ray.wait([result], timeout=patience)
    if not ready:
        raise Gone(f"said nothing for {patience:g} s")


def kill(handle: Handle) -> None:
    """End an actor, if it still runs."""
    import ray

    with contextlib.suppress(Exception):
        ray.kill(handle, no_restart=True)


Arrays = list[npt.NDArray[Any]]


def pack(tensors: Sequence[torch.Tensor]) -> Arrays:
    return [tensor.detach().numpy() for tensor in tensors]


def unpack(arrays: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
    """Return tensors of their own: arrays that Ray hands out cannot be written to."""
    return [torch.from_numpy(np.array(array)) for array in arrays]
