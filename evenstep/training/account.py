"""The account of a training: what was reported, added up for the summary and the run log."""

from __future__ import annotations

from evenstep.core.arrays import Ints
from evenstep.core.report import Reports
from evenstep.training.exchanged import Exchanged
from evenstep.training.recording import Recorder
from evenstep.training.summary import Summary


class Account:
    """Takes every iteration's reports, wherever the plans come from."""

    def __init__(self, even: Ints, recorder: Recorder | None) -> None:
        self.summary = Summary(even)
        self.last_reports: Reports | None = None
        self._recorder = recorder

    def add(self, reports: Reports, done: Exchanged) -> None:
        """Add the iteration that these reports are about."""
        self.last_reports = reports
        self.summary.observe(reports, done.plan)
        if self._recorder is not None:
            self._recorder.record(reports, done.plan, done.sizes, done.iteration, done.start)

    def note(self, iteration: int, text: str) -> None:
        """Write into the run log, where there is one, what happened before an iteration."""
        if self._recorder is not None:
            self._recorder.note(iteration, text)

    def close(self, iteration: int) -> None:
        """End the run log."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close(iteration)
