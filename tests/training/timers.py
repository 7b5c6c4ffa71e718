"""A timer of emulated speeds, for loops that do nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from evenstep.measure.timer import Measurement


class SpeedTimer:
    """Says how long a batch takes at a speed, or at one after the other of a worker's speeds."""

    def __init__(self, speed: float | Callable[[int], float]) -> None:
        self._speed = speed
        self._count = 0
        self._samples = 0.0
        self._done: Measurement | None = None

    def start(self) -> None: ...
    def add(self, seconds: float) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def reported(self) -> None: ...
    def keep(self) -> None: ...
    def spoil(self) -> None: ...

    def batch(self, batch_size: float) -> None:
        self._samples = batch_size

    def stop(self) -> None:
        self._count += 1
        speed = self._speed(self._count) if callable(self._speed) else self._speed
        self._done = Measurement(self._samples, self._samples / speed)

    def finished(self) -> Measurement | None:
        done, self._done = self._done, None
        return done


class LateTimer(SpeedTimer):
    """Answers one iteration late, as for a device that runs ahead of its host."""

    def __init__(self, speed: float | Callable[[int], float]) -> None:
        super().__init__(speed)
        self._running: deque[Measurement] = deque()

    def stop(self) -> None:
        super().stop()
        assert self._done is not None
        self._running.append(self._done)

    def finished(self) -> Measurement | None:
        if len(self._running) < 2:
            return None
        return replace(self._running.popleft(), age=len(self._running))
