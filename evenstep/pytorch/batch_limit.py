"""The memory limit of a worker: the largest batch that it can run in one piece.

The limit is given, or learned: from readings of the peak memory, and from out-of-memory errors,
after which it is half of the failed size.
"""

from __future__ import annotations

import torch

from evenstep.core import UNLIMITED, Reports
from evenstep.errors import MemoryExhausted
from evenstep.measure.memory import HostMemory, PeakMemory
from evenstep.policies.memory_model import MemoryModel

_EVERY = 8
"""Iterations per reading: batch sizes change seldom, and a reading takes time."""


class MemoryReadings:
    """The peak memory that torch uses on a CUDA device; not yet run on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def read(self) -> float | None:
        _, capacity = torch.cuda.mem_get_info(self._device)
        peak = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return min(1.0, peak / capacity)


class BatchLimit:
    """The largest size to run in one piece, as far as it is known."""

    def __init__(self, given: int | None, min_trainable: int, memory: PeakMemory) -> None:
        self._most = UNLIMITED if given is None else given
        self._promised = UNLIMITED
        self.min_trainable = min_trainable
        """The smallest piece that can be run."""
        self._memory = memory
        self._model = MemoryModel.fresh(1)
        self._sizes: list[int] = []

    @property
    def size(self) -> int:
        """The smallest of the given limit, the failed sizes halved, and the limit by readings."""
        return min(self._most, self._promised)

    def expect(self, size: int) -> None:
        """Use the limit from before a restart until readings give another one."""
        self._promised = min(self._promised, size)

    def has_run(self, size: int) -> float | None:
        """Record a piece that fitted into memory.

        Returns the share of the memory in use at its peak, if a reading was due and the size has
        been the same since the last one.
        """
        if not size:
            return None
        self._sizes.append(size)
        if len(self._sizes) < _EVERY:
            return None
        sizes, self._sizes = self._sizes, []
        used = self._memory.read()
        if used is not None:
            self._learn(max(sizes), used)
        return used if min(sizes) == max(sizes) else None

    def has_failed(self, size: int) -> None:
        """Record a piece that did not fit into memory; raises if no piece can be smaller."""
        smaller = max(self.min_trainable, size // 2)
        if smaller >= size:
            raise MemoryExhausted(
                f"memory must suffice for a batch of {self.min_trainable}, got none left at {size}"
            )
        self._most = min(self._most, smaller)

    def _learn(self, size: int, used: float) -> None:
        reading = Reports.silent(0, 1)
        reading.batch_sizes[0] = size
        reading.device_memory[0] = used
        self._model = self._model.observe(reading)
        if self._model.slope[0] > 0:
            # It takes two sizes to fit a line.
            self._promised = max(int(self._model.caps()[0]), self.min_trainable)


def peak_memory(device: torch.device) -> PeakMemory:
    return MemoryReadings(device) if device.type == "cuda" else HostMemory()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the memory of any device ran out."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    words = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)
