"""Agreement: all workers must have been given the same arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from evenstep.errors import InvalidSetting


def require_agreement(settings: Mapping[str, Any], group: dist.ProcessGroup) -> None:
    """Raise InvalidSetting, on all workers, naming the first worker that differs and how."""
    everybody: list[Mapping[str, Any] | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everybody, dict(settings), group=group)
    first = everybody[0] or {}
    for worker, theirs in enumerate(everybody):
        for name, value in (theirs or {}).items():
            if value != first.get(name):
                raise InvalidSetting(
                    f"{name} must be the same on all workers, got {first.get(name)!r} on worker 0 "
                    f"and {value!r} on worker {worker}"
                )
