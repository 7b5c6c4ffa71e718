"""Emulation: a worker that takes as long as a slower device would.

The computation is real; within its own work the worker sleeps until the emulated device would have
finished the batch. To the other workers it looks like a slower device.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from evenstep.measure.timer import HostTimer

Curve = Callable[[float], float]
"""Batch size to seconds."""


class EmulatedDevice(HostTimer):
    """The timer of a worker whose batches take the time given by a curve.

    It measures like any host timer. `slow_down` puts the sleep at the end of an iteration's own
    work: before the last gradient of backward(), which is the first layer's. A curve of 0 emulates
    nothing.
    """

    def __init__(self, curve: Curve) -> None:
        super().__init__()
        self._curve = curve
        self._started = 0.0
        self._until = 0.0
        self.late = 0
        """Batches whose real computation took longer than the emulated time."""

    def start(self) -> None:
        super().start()
        self._started = time.perf_counter()

    def batch(self, batch_size: float) -> None:
        super().batch(batch_size)
        seconds = self._curve(batch_size)
        self._until = self._started + seconds if seconds > 0 else 0.0

    def slow_down(self, first_layer: nn.Module) -> None:
        """Sleep before each of the layer's gradients until the emulated device would be done."""
        for parameter in first_layer.parameters():
            parameter.register_hook(self._sleep)

    def _sleep(self, gradient: torch.Tensor) -> None:
        left = self._until - time.perf_counter()
        if left > 0:
            time.sleep(left)
        elif self._until > 0:
            self.late += 1
        self._until = 0.0
