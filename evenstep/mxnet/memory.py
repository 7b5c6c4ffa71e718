"""Memory of a device in use, where there is a limit to batches in it."""

from __future__ import annotations

from typing import Any

import mxnet as mx


def used_memory(context: Any) -> float | None:
    """Return the share of a GPU's memory that is in use; None on a CPU, whose memory is shared.

    MXNet keeps what it has allocated once, so that this is the share at its peak.

    >>> used_memory(mx.cpu())
    """
    if context.device_type != "gpu":
        return None
    free, total = mx.context.gpu_memory_info(context.device_id)
    return float(1 - free / total)
