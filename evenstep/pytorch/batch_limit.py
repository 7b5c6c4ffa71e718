"""A worker's memory limit: the largest batch that it can run in one piece.

It is given, or learned: from readings of the memory at its peak, before anything goes wrong, and
from running out of memory, after which it is half of what failed.
"""

from __future__ import annotations

import torch

from evenstep.core import UNLIMITED, Reports
from evenstep.errors import MemoryExhausted
from evenstep.measure.memory import HostMemory, PeakMemory
from evenstep.policies.memory_model import MemoryModel

_EVERY = 8
"""Iterations per reading: a batch size changes seldom, and a reading is not free."""


class MemoryReadings:
    """The peak of what torch holds of a CUDA device; written to the API, not yet run on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def read(self) -> float | None:
        _, capacity = torch.cuda.mem_get_info(self._device)
        peak = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return min(1.0, peak / capacity)


class BatchLimit:
    """The largest size that is run in one piece, as far as is known."""

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
        """What was given, what has not failed, and what readings promise, whichever is least."""
        return min(self._most, self._promised)

    def expect(self, size: int) -> None:
        """Take up what was known before a restart, until readings say otherwise."""
        self._promised = min(self._promised, size)

    def has_run(self, size: int) -> float | None:
        """Take note of a piece that went well.

        Returns what share of the memory was in use at its peak, if it was time to look and the
        size was the same all along.
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
        """Take note that memory did not suffice for a piece; raises where none can be smaller."""
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
            # A line through two sizes; through one and the origin it would be a wild guess.
            self._promised = max(int(self._model.caps()[0]), self.min_trainable)


def peak_memory(device: torch.device) -> PeakMemory:
    return MemoryReadings(device) if device.type == "cuda" else HostMemory()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, on whatever device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    words = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)
