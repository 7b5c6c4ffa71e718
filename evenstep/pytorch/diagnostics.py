"""What torch has on this machine: `python -m evenstep.pytorch.diagnostics` prints it as JSON."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist


def facts() -> dict[str, Any]:
    """Return backends of process groups, and devices; `cuda` says why there are none."""
    available = dist.is_available()
    backends = {
        name: available and bool(getattr(dist, f"is_{name}_available")())
        for name in ("gloo", "nccl", "mpi", "ucc")
    }
    properties = [
        torch.cuda.get_device_properties(i)
        for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    ]
    built = torch.version.cuda or torch.version.hip
    return {
        "version": torch.__version__,
        "backends": backends,
        "devices": [{"name": p.name, "gib": p.total_memory / 2**30} for p in properties],
        "cuda": "" if built is None else f"torch is a build for CUDA {built}, but finds no device",
    }


if __name__ == "__main__":
    print(json.dumps(facts()))
