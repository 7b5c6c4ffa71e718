"""The workers of a process group, as they meet."""

from __future__ import annotations

import torch
import torch.distributed as dist

from evenstep.core.arrays import Floats
from evenstep.pytorch.handed import Handed


class GroupMeeting:
    """Lets the workers of a group that can exchange CPU tensors tell each other numbers."""

    def __init__(self, group: dist.ProcessGroup, handed: Handed) -> None:
        self._group = group
        self._handed = handed
        self.worker = dist.get_rank(group)
        self.num_workers = dist.get_world_size(group)

    def everybody(self, row: Floats) -> Floats:
        """Return the rows of all workers: each fills its own in zeros, and they are summed."""
        rows = torch.zeros(self.num_workers, len(row), dtype=torch.float64)
        rows[self.worker] = torch.from_numpy(row)
        dist.all_reduce(self._handed.watch(rows), group=self._group)
        told: Floats = rows.numpy()
        return told
