"""Workers that join and leave change the order of the arrays."""

import math

import numpy as np
import pytest

from evenstep.core import UNLIMITED
from evenstep.errors import InvalidSetting, RunLogError
from evenstep.runlog import Event, RunLogBuilder, RunLogParser, read
from tests.runlog.examples import header, row, text_of

LEAVE = Event("leave", 1, worker="w0", workers=["w1"])
JOIN = Event("join", 2, worker="w2", workers=["w2", "w1"])
TEXT = text_of(
    header(),
    row(0, [8, 24], [0.2, 0.3], caps=[16, 32]),
    LEAVE,
    Event("plan", 1, plan=1, batch_sizes=[32]),
    row(1, [32], [0.4], plan=1),
    JOIN,
    row(2, [20, 12], [0.5, 0.1], plan=2),
)


@pytest.fixture
def run_log(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(TEXT)
    return read(path)


def test_a_change_of_membership_begins_a_segment(run_log):
    assert [segment.workers for segment in run_log.segments] == [
        ("w0", "w1"),
        ("w1",),
        ("w2", "w1"),
    ]
    assert [segment.batch_sizes.tolist() for segment in run_log.segments] == [
        [[8, 24]],
        [[32]],
        [[20, 12]],
    ]
    assert [segment.caps.tolist() for segment in run_log.segments] == [
        [[16, 32]],
        [[UNLIMITED]],
        [[UNLIMITED, UNLIMITED]],
    ]


def test_a_matrix_joins_the_segments(run_log):
    nan = math.nan
    assert run_log.workers == ("w0", "w1", "w2")
    np.testing.assert_array_equal(
        run_log.matrix("times"), [[0.2, 0.3, nan], [nan, 0.4, nan], [nan, 0.1, 0.5]]
    )
    np.testing.assert_array_equal(run_log.iterations, [0, 1, 2])
    np.testing.assert_array_equal(run_log.iteration_times, [0.3, 0.4, 0.5])


def test_rows_and_plans_of_the_old_members_are_damage_after_a_change():
    for line in (TEXT.splitlines()[1].replace('"iteration":0', '"iteration":9'),
                 '{"event":"plan","iteration":9,"plan":3,"batch_sizes":[16,8,8]}'):  # fmt: skip
        parser = RunLogParser()
        parser.feed("".join(f"{each}\n" for each in TEXT.splitlines()[:5]))
        with pytest.raises(RunLogError, match=r"line 6: .*one entry per worker"):
            parser.feed(line + "\n")


def test_the_writer_refuses_rows_and_plans_of_the_old_members():
    with pytest.raises(InvalidSetting, match=r"one entry per worker \(1\), got 2"):
        text_of(header(), LEAVE, row(1))
    with pytest.raises(InvalidSetting, match=r"one entry per worker \(1\), got 2"):
        text_of(header(), LEAVE, Event("plan", 1, plan=1, batch_sizes=[8, 24]))


def test_a_built_run_log_does_not_change_when_more_records_come():
    builder = RunLogBuilder()
    records = RunLogParser().feed(TEXT)
    for record in records[:2]:
        builder.add(record)
    early = builder.build()
    for record in records[2:]:
        builder.add(record)
    assert (early.num_iterations, early.events, len(early.segments)) == (1, (), 1)
    assert builder.build().num_iterations == 3
    assert early.segments[0].times.tolist() == [[0.2, 0.3]]


def test_there_is_no_run_log_without_a_header():
    with pytest.raises(RunLogError, match="must begin with a header"):
        RunLogBuilder().build()
