"""A timer for CUDA, based on events that do not block the host.

Tested with stand-ins for events; not yet run on a GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from evenstep.measure.timer import HostTimer, Measurement, Timer


@dataclass
class _Work:
    """A measurement: samples, and pairs of events around the time spent on them."""

    samples: float = 0
    spans: list[tuple[Any, Any]] = field(default_factory=list)
    is_spoilt: bool = False


class CudaTimer:
    """Measures by events on the current stream; a time is known one iteration later."""

    def __init__(self, make_event: Callable[[], Any] | None = None) -> None:
        self._make_event = make_event or _timing_event
        self._begun: Any = None
        self._is_paused = False
        self._piece = _Work()
        self._kept = _Work()
        self._running: deque[_Work] = deque()

    def start(self) -> None:
        self._piece, self._is_paused = _Work(), False
        self._begun = self._record()

    def batch(self, batch_size: float) -> None:
        self._piece.samples = batch_size

    def add(self, seconds: float) -> None:
        """Do nothing: the host was loading the batch while the device was computing."""

    def pause(self) -> None:
        if self._begun is not None:
            self._piece.spans.append((self._begun, self._record()))
            self._begun, self._is_paused = None, True

    def resume(self) -> None:
        if self._is_paused:
            self._begun, self._is_paused = self._record(), False

    def spoil(self) -> None:
        self._piece.is_spoilt = True

    def keep(self) -> None:
        self.pause()
        self._kept.samples += self._piece.samples
        self._kept.spans += self._piece.spans
        self._kept.is_spoilt |= self._piece.is_spoilt
        self._piece, self._is_paused = _Work(), False

    def stop(self) -> None:
        self.keep()
        self._running.append(self._kept)
        self._kept = _Work()

    def reported(self) -> None:
        """Do nothing: work of the host does not delay the device."""

    def finished(self) -> Measurement | None:
        """Return the iteration before the one that was stopped last, if its events have passed."""
        if len(self._running) < 2:
            return None
        work = self._running.popleft()
        age = len(self._running)
        if work.is_spoilt or not all(end.query() for _, end in work.spans):
            return Measurement(work.samples, None, age)
        milliseconds = sum(begin.elapsed_time(end) for begin, end in work.spans)
        return Measurement(work.samples, milliseconds / 1e3 if milliseconds > 0 else None, age)

    def _record(self) -> Any:
        event = self._make_event()
        event.record()
        return event


def _timing_event() -> Any:
    return torch.cuda.Event(enable_timing=True)


def make_timer(device: torch.device) -> Timer:
    """Return the timer for a device."""
    return CudaTimer() if device.type == "cuda" else HostTimer()
