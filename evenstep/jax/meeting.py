"""The processes of jax.distributed, as they meet."""

from __future__ import annotations

import numpy as np

from evenstep.core.arrays import Floats
from evenstep.jax.summing import Summing


class ProcessMeeting:
    """Lets the processes tell each other numbers."""

    def __init__(self, summing: Summing) -> None:
        self._sum = summing
        self.worker = summing.worker
        self.num_workers = summing.num_workers

    def everybody(self, row: Floats) -> Floats:
        """Return the rows of all workers: each fills its own in zeros, and they are summed.

        They travel as integers of the same bits, as JAX has no float64 unless it is told to; and
        in few lengths, as each is compiled.
        """
        words = np.ascontiguousarray(row, dtype=np.float64).view(np.int32)
        width = 1 << max(len(words) - 1, 1).bit_length()
        rows = np.zeros((self.num_workers, width), dtype=np.int32)
        rows[self.worker, : len(words)] = words
        summed = np.asarray(self._sum(rows.reshape(1, -1))).reshape(self.num_workers, width)
        told: Floats = np.ascontiguousarray(summed[:, : len(words)]).view(np.float64)
        return told
