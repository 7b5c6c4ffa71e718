"""Makes the report of this worker at the end of each iteration."""

from __future__ import annotations

import numpy as np

from evenstep.core import Predictor, Usage
from evenstep.core.speed_model import SpeedModel
from evenstep.measure.timer import Measurement, Timer
from evenstep.measure.usage import UsageProbe
from evenstep.training.report_rows import Row, write_row


class Reporter:
    """Measures this worker, predicts its speed, and writes both into a row."""

    def __init__(
        self,
        predictor: Predictor | None,
        timer: Timer,
        warm_up: int,
        reads: bool,
    ) -> None:
        self._model = None if predictor is None else SpeedModel(predictor)
        self._timer = timer
        self._warm_up = warm_up
        # Usage is read only where the predictor, the policy or the log needs it.
        self._probe = UsageProbe() if predictor is not None or reads else None
        self._num_ended = 0
        self._remembered: float | None = None

    def row(self, cap: int | None, device_memory: float | None, digest: int) -> Row:
        """Return the row of the iteration that has just ended, with the digest of its plan.

        The measured iteration may be an earlier one; the row holds its age.
        """
        measured = self._timer.finished()
        self._num_ended += 1
        usage = self._probe.read() if self._probe is not None else Usage()
        known = measured if self._is_known(measured) else None
        return write_row(
            batch_size=None if known is None else known.batch_size,
            time=None if known is None else known.time,
            cpu=usage.cpu,
            memory=usage.memory,
            device_memory=device_memory,
            speed=self._predict(known, usage),
            cap=cap,
            digest=digest,
            age=None if measured is None else measured.age,
        )

    def remember(self, speed: float) -> None:
        """Report this speed, from before a restart, until there is a measurement."""
        self._remembered = speed

    def close(self) -> None:
        """Stop the probe and the training of the predictor."""
        if self._probe is not None:
            self._probe.close()
        if self._model is not None:
            self._model.close()

    def _is_known(self, measured: Measurement | None) -> bool:
        """Whether the measurement is usable: the first iterations allocate and compile."""
        if measured is None or not measured.time or measured.batch_size <= 0:
            return False
        return self._iteration_of(measured) >= self._warm_up

    def _iteration_of(self, measured: Measurement) -> int:
        """Return the measured iteration, counted from 0 since this worker started."""
        return self._num_ended - 1 - measured.age

    def _predict(self, known: Measurement | None, usage: Usage) -> float | None:
        """Learn from the measurement, and predict the speed of the next iteration."""
        if self._model is None:
            return None
        if known is not None and known.time:
            speed = np.array([known.batch_size / known.time])
            self._model.learn(speed, np.array([self._iteration_of(known)]))
        cpu, memory = np.array([usage.cpu]), np.array([usage.memory])
        self._model.begin(self._num_ended, cpu, memory)
        if not self._model.is_taught:
            return self._remembered
        return float(self._model.predict(cpu, memory)[0])
