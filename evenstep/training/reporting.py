"""Reporting: what this worker says at the end of each iteration."""

from __future__ import annotations

import numpy as np

from evenstep.core.predictor import Predictor
from evenstep.core.report import Usage
from evenstep.core.trainer import TrainInBackground
from evenstep.measure.timer import Measurement, Timer
from evenstep.measure.usage import UsageProbe
from evenstep.transports.slots import Row, write_row


class Reporter:
    """Measures this worker, predicts its speed, and writes both into a row."""

    def __init__(
        self,
        predictor: Predictor | None,
        timer: Timer,
        warm_up: int,
        reads: bool,
    ) -> None:
        self._predictor = predictor
        self._timer = timer
        self._warm_up = warm_up
        # Usage is only read where somebody uses it.
        self._probe = UsageProbe() if predictor is not None or reads else None
        self._trainer = TrainInBackground()
        self._usage_before: Usage | None = None
        self._is_seen = False
        self._remembered: float | None = None

    def row(self, cap: int | None, device_memory: float | None, digest: int) -> Row:
        """Return the row of the iteration that has just ended, with the digest of its plan."""
        measured = self._timer.finished()
        if self._warm_up > 0:
            # The first iterations allocate, compile and rebuild: nothing to learn from.
            self._warm_up -= 1
            measured = None
        usage = self._probe.read() if self._probe is not None else Usage()
        speed = self._predict(measured, usage)
        known = measured is not None and measured.time is not None and measured.batch_size > 0
        return write_row(
            batch_size=measured.batch_size if measured is not None and known else None,
            time=measured.time if measured is not None and known else None,
            cpu=usage.cpu,
            memory=usage.memory,
            device_memory=device_memory,
            speed=speed,
            cap=cap,
            digest=digest,
        )

    def remember(self, speed: float) -> None:
        """Report the speed that this worker had before a restart, until it has measured one."""
        self._remembered = speed

    def close(self) -> None:
        """End the probe and a training that may be going on."""
        if self._probe is not None:
            self._probe.close()
        self._trainer.close()

    def _predict(self, measured: Measurement | None, usage: Usage) -> float | None:
        """Learn the speed with the usage at the start of its iteration; predict the next one."""
        if self._predictor is None:
            return None
        before, self._usage_before = self._usage_before, usage
        if measured is not None and measured.time and measured.batch_size and before is not None:
            speed = np.array([measured.batch_size / measured.time])
            self._predictor.observe(speed, np.array([before.cpu]), np.array([before.memory]))
            self._trainer.poll(self._predictor)
            self._is_seen = True
        if not self._is_seen:
            return self._remembered
        prediction = self._predictor.predict(np.array([usage.cpu]), np.array([usage.memory]))
        return float(prediction[0])
