"""The writer writes whole lines, and nothing that cannot be read."""

import io

import numpy as np
import pytest

from evenstep.core import Advice, Plan
from evenstep.errors import InvalidSetting
from evenstep.runlog import Event, RunLogParser, RunLogWriter, read
from tests.runlog.examples import header, row, text_of


def test_every_line_can_be_read_as_soon_as_it_is_written(tmp_path):
    path = tmp_path / "run.jsonl"
    with RunLogWriter(path, header()) as log:
        for k in range(3):
            assert read(path).num_iterations == k
            log.iteration(row(k))
        assert read(path).num_iterations == 3


class Strict(io.StringIO):
    """A file that wants whole lines."""

    def write(self, text: str) -> int:
        assert text.endswith("\n") and text.count("\n") == 1
        return super().write(text)


def test_every_line_is_written_at_once_and_the_callers_file_stays_open():
    file = Strict()
    with RunLogWriter(file, header()) as log:
        log.iteration(row())
        log.event(Event("end", 1))
    assert not file.closed


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: row(times=[0.1]), r"times must have one entry per worker"),
        (lambda: row(batch_sizes=[[8, 24]]), r"batch_sizes must have one entry per worker"),
        (lambda: row(batch_sizes=[8, -5]), "batch_sizes must be a list of integers"),
        (lambda: row(batch_sizes=[8, 2**60]), "batch_sizes must be a list of integers"),
        (lambda: row(caps=[8, -5]), "caps must be a list of integers"),
        (lambda: row(iteration=-1), r"iteration must be an integer from 0 to 2\^53, got -1"),
        (lambda: row(batch_sizes=[8], times=[0.1]), r"one entry per worker \(2\), got 1"),
        (lambda: Event("party", 1), "event must be one of"),
        (lambda: Event("plan", 1, plan=1, batch_sizes=[8]), r"one entry per worker \(2\), got 1"),
    ],
)  # fmt: skip
def test_what_breaks_the_format_is_refused(wrong, message):
    with pytest.raises(InvalidSetting, match=message):
        text_of(header(), wrong())


def test_a_refused_record_leaves_the_log_as_it_was():
    file = io.StringIO()
    with RunLogWriter(file, header()) as log:
        log.iteration(row(4))
        before = file.getvalue()
        for wrong in (row(4), row(5, batch_sizes=[-1, 2])):
            with pytest.raises(InvalidSetting):
                log.iteration(wrong)
        assert file.getvalue() == before
        log.iteration(row(5))


def test_a_plan_tells_what_is_new_in_it_and_nothing_twice():
    sizes = np.array([8, 24])
    first = Plan(0, 0, sizes, reason="start", predicted_times=np.array([0.2, np.nan]), phase="fast")
    held = Plan(0, 0, sizes, phase="fast", proposed=np.array([9, 23]), advice=(Advice(1, 0.1),))
    later = Plan(1, 3, np.array([9, 23]), reason="slow", phase="fine", advice=(Advice(1, 0.2),))
    file = io.StringIO()
    with RunLogWriter(file, header()) as log:
        log.plan(first)
        log.plan(first, iteration=1)
        log.plan(held, iteration=2)
        log.plan(held, iteration=3)
        log.plan(later)
    assert RunLogParser().feed(file.getvalue())[1:] == [
        Event("plan", 0, plan=0, batch_sizes=(8, 24), predicted_time=0.2, reason="start"),
        Event("phase", 0, phase="fast"),
        Event("proposal", 2, batch_sizes=(9, 23)),
        Event("advice", 2, advice="remove", worker="w1", predicted_time=0.1),
        Event("plan", 3, plan=1, batch_sizes=(9, 23), reason="slow"),
        Event("phase", 3, phase="fine"),
    ]
