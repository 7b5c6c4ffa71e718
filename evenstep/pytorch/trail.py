"""The trail of a training: which plans it used for which samples, as one number."""

from __future__ import annotations

import zlib

import numpy as np

from evenstep.errors import DivergedPlans
from evenstep.training.iteration import Iteration
from evenstep.training.meeting import Meeting
from evenstep.transports.slots import digest


class Trail:
    """Hashes all iterations, for workers whose gradient exchange carries no digest."""

    def __init__(self) -> None:
        self._hash = 0

    def add(self, iteration: Iteration) -> None:
        """Take note of an iteration that was trained on."""
        digested = digest(iteration.plan, iteration.place).to_bytes(4, "little")
        self._hash = zlib.crc32(digested, self._hash)

    def check(self, meeting: Meeting) -> None:
        """Raise DivergedPlans, on all workers, unless they all trained on the same iterations."""
        hashes = meeting.everybody(np.array([self._hash], dtype=np.float64))[:, 0].tolist()
        for worker, theirs in enumerate(hashes):
            if theirs != hashes[0]:
                raise DivergedPlans(
                    "all workers must use the same plan for the same samples, but worker "
                    f"{worker} and worker 0 did not; do all workers go through the same epochs, "
                    "with the same versions of evenstep and numpy?"
                )
