"""Identity: what a worker is called, so that it is found again after a restart."""

from __future__ import annotations

import platform

import torch

from evenstep.training.meeting import Meeting, tell
from evenstep.training.names import choose_names


def gather_names(name: str | None, device: torch.device, meeting: Meeting) -> list[str]:
    """Return the names of all workers: as they were given, or by host and device.

    Several on one device are told apart by a number, in the order of their ranks. All workers
    must call it.
    """
    everybody = tell(meeting, [name, _host_and_device(device)])
    return choose_names([given for given, _ in everybody], [found for _, found in everybody])


def _host_and_device(device: torch.device) -> str:
    if device.type != "cuda":
        return f"{platform.node()}/{device.type}"
    return f"{platform.node()}/cuda-{torch.cuda.get_device_properties(device).uuid}"
