"""Reading long run logs: some of the iterations, and all that matters besides."""

import numpy as np
import pytest

from evenstep import runlog
from evenstep.runlog import Event, Record
from evenstep.runlog import reader as reader_module
from tests.runlog.examples import full_row, header, text_of

COUNT = 3000


@pytest.fixture
def long_log(tmp_path, monkeypatch):
    monkeypatch.setattr(reader_module, "_PIECE", 4096)
    path = tmp_path / "run.jsonl"
    rows = [full_row(k, 2) for k in range(COUNT)]
    middle = Event("note", COUNT // 2, text="in the middle")
    path.write_text(
        text_of(header(), *rows[: COUNT // 2], middle, *rows[COUNT // 2 :], Event("end", COUNT))
    )
    return path


def test_some_rows_and_all_events_are_read_of_a_long_log(long_log):
    size = long_log.stat().st_size
    part = runlog.read(long_log, budget=size // 4 + 1)
    assert part.num_iterations + part.num_skipped == COUNT
    assert COUNT / 4 < part.num_iterations < COUNT / 2
    assert [event.kind for event in part.events] == ["note", "end"]
    assert part.iterations[:20].tolist() == list(range(20))
    assert part.iterations[-20:].tolist() == list(range(COUNT - 20, COUNT))
    assert int(np.diff(part.iterations).max()) <= 5


def test_rows_that_are_read_are_those_of_the_whole_log(long_log):
    whole = runlog.read(long_log)
    part = runlog.read(long_log, budget=long_log.stat().st_size // 3)
    assert whole.num_skipped == 0
    np.testing.assert_array_equal(part.matrix("times"), whole.matrix("times")[part.iterations])


@pytest.mark.parametrize("part", [2, 4])
@pytest.mark.parametrize("notes", [0, 1])
def test_rows_are_read_all_along_where_a_plan_follows_every_one(tmp_path, monkeypatch, part, notes):
    monkeypatch.setattr(reader_module, "_PIECE", 4096)
    path = tmp_path / "run.jsonl"
    records: list[Record] = [Event("note", 0, text="shifts the lines by one")] * notes
    for k in range(COUNT):
        records += [full_row(k, 2), Event("plan", k + 1, plan=k + 1, batch_sizes=[16, 16])]
    path.write_text(text_of(header(), *records))
    read = runlog.read(path, budget=path.stat().st_size // part + 1)
    assert COUNT / part < read.num_iterations < COUNT / part + COUNT / 4
    assert int(np.diff(read.iterations).max()) <= part + 1


def test_log_within_the_budget_is_read_as_a_whole(long_log):
    assert runlog.read(long_log, budget=long_log.stat().st_size).num_iterations == COUNT
