"""The collective of a process group."""

from __future__ import annotations

import torch
import torch.distributed as dist

from evenstep.core import Floats, Ints
from evenstep.pytorch.inflight import InflightTensors


class ProcessGroupCollective:
    """Exchanges numbers between the workers of a group that supports CPU tensors."""

    def __init__(self, group: dist.ProcessGroup, inflight: InflightTensors) -> None:
        self.group = group
        self.inflight = inflight
        self.worker = dist.get_rank(group)
        self.num_workers = dist.get_world_size(group)

    def everybody(self, row: Floats) -> Floats:
        """Return the rows of all workers: each fills its own in zeros, and they are summed."""
        rows = torch.zeros(self.num_workers, len(row), dtype=torch.float64)
        rows[self.worker] = torch.from_numpy(row)
        dist.all_reduce(self.inflight.watch(rows), group=self.group)
        gathered: Floats = rows.numpy()
        return gathered

    def of_first(self, numbers: Ints) -> Ints:
        """Return the numbers of worker 0; all workers must pass the same length."""
        sent = torch.from_numpy(numbers.copy())
        dist.broadcast(self.inflight.watch(sent), dist.get_global_rank(self.group, 0), self.group)
        first: Ints = sent.numpy()
        return first


def collective_of(group: dist.ProcessGroup) -> ProcessGroupCollective:
    """Return the collective of a group, through a second group if it has no CPU tensors."""
    return ProcessGroupCollective(_side_group(group), InflightTensors())


def _side_group(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return a group that can exchange CPU tensors among the same workers."""
    if "gloo" in str(dist.get_backend(group)):
        return group
    ranks = dist.get_process_group_ranks(group)
    side: dist.ProcessGroup = dist.new_group(ranks, backend="gloo")
    return side
