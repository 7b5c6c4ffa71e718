"""Identity: what a worker is called, so that it is found again after a restart."""

from __future__ import annotations

import platform
from collections import Counter

import torch
import torch.distributed as dist

from evenstep.errors import InvalidSetting


def gather_names(name: str | None, device: torch.device, group: dist.ProcessGroup) -> list[str]:
    """Return the names of all workers: as they were given, or by host and device.

    Several on one device are told apart by a number, in the order of their ranks. All workers
    must call it.
    """
    everybody: list[tuple[str | None, str]] = [(None, "")] * dist.get_world_size(group)
    dist.all_gather_object(everybody, (name, _host_and_device(device)), group=group)
    given = [name for name, _ in everybody if name is not None]
    if given and len(given) < len(everybody):
        worker = next(i for i, (name, _) in enumerate(everybody) if name is None)
        raise InvalidSetting(
            f"name must be given on all workers or on none, got none on worker {worker}"
        )
    if given:
        _require_distinct(given)
        return given
    return _numbered([found for _, found in everybody])


def _host_and_device(device: torch.device) -> str:
    if device.type != "cuda":
        return f"{platform.node()}/{device.type}"
    return f"{platform.node()}/cuda-{torch.cuda.get_device_properties(device).uuid}"


def _numbered(names: list[str]) -> list[str]:
    """Tell equal names apart.

    >>> _numbered(["a/cpu", "b/cpu", "a/cpu"])
    ['a/cpu', 'b/cpu', 'a/cpu#1']
    """
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        numbered.append(f"{name}#{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return numbered


def _require_distinct(names: list[str]) -> None:
    for worker, name in enumerate(names):
        if name in names[:worker]:
            raise InvalidSetting(
                f"name must be another on every worker, got {name!r} on workers "
                f"{names.index(name)} and {worker}"
            )
