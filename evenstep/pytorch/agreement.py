"""Agreement: all workers must have been given the same arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from evenstep.training.meeting import compare


def require_agreement(settings: Mapping[str, Any], group: dist.ProcessGroup) -> None:
    """Raise InvalidSetting, on all workers, naming the first worker that differs and how."""
    everybody: list[Mapping[str, Any]] = [{}] * dist.get_world_size(group)
    dist.all_gather_object(everybody, _told(settings), group=group)
    compare(everybody)


def _told(settings: Mapping[str, Any]) -> dict[str, str]:
    return {name: repr(value) for name, value in settings.items()}
