"""The account of a training: what was reported, added up for the summary and the run log."""

from __future__ import annotations

from evenstep.core.arrays import Ints
from evenstep.core.attribution import Attribution
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
        self._attribution: Attribution[Exchanged] = Attribution()

    def add(self, reports: Reports, done: Exchanged) -> None:
        """Take the reports at the end of an iteration, which is added once its times are known."""
        self.last_reports = reports
        for complete, iteration in self._attribution.add(reports, done):
            self._add(complete, iteration)

    def _add(self, reports: Reports, done: Exchanged) -> None:
        self.summary.observe(reports, done.plan)
        if self._recorder is not None:
            self._recorder.record(reports, done.plan, done.sizes, done.iteration, done.start)

    def note(self, iteration: int, text: str) -> None:
        """Write into the run log, where there is one, what happened before an iteration."""
        if self._recorder is not None:
            self._recorder.note(iteration, text)

    def close(self, iteration: int) -> None:
        """Add what still waits for times that will not come, and end the run log."""
        for reports, done in self._attribution.rest():
            self._add(reports, done)
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close(iteration)
