"""A run log in memory: how it is shown on a terminal and in a notebook."""

import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from evenstep.runlog import Event, read
from tests.runlog.examples import WORKERS, header, row, text_of

HOSTILE = ("</td><script>alert(1)</script>", "w\x1b[31m\u202e1")


@pytest.fixture
def log(tmp_path):
    """Reads a log of 4 iterations, in which the sizes change in the second half."""

    def make(workers=WORKERS, **changes):
        path = tmp_path / "run.jsonl"
        slow = [row(k, [16, 16], [0.1, 0.3], waiting=[0.2, 0.0]) for k in range(2)]
        even = [row(k, [24, 8], [0.15, 0.12], waiting=[0.0, 0.03], plan=1) for k in range(2, 4)]
        plan = Event("plan", 2, plan=1, batch_sizes=[24, 8])
        path.write_text(text_of(header(workers, **changes), *slow, plan, *even, Event("end", 4)))
        return read(path)

    return make


class Cells(HTMLParser):
    """The texts of the cells, and the tags of a page."""

    def __init__(self, text):
        super().__init__()
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self._tag = tag

    def handle_data(self, data):
        if self._tag in ("td", "th"):
            self.cells.append(data)


def test_repr_has_the_run_in_a_line(log):
    assert repr(log()) == "RunLog('G', simulated: 2 workers, 4 iterations, total 32, even, ended)"
    assert repr(log().segments[0]) == "Segment(iterations 0 to 3, 2 workers: w0, w1)"


def test_repr_of_a_log_without_iterations_is_one_line(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header()))
    empty = read(path)
    assert (
        repr(empty) == "RunLog('G', simulated: 2 workers, 0 iterations, total 32, even, not ended)"
    )
    assert Cells(empty._repr_html_()).tags == {"p"}


def test_times_that_are_unknown_are_not_shown_as_numbers(tmp_path):
    path = tmp_path / "run.jsonl"
    rows = [row(k, [32, 0], [np.nan, np.nan]) for k in range(2)]
    path.write_text(text_of(header(), *rows))
    assert "nan" not in repr(read(path)) + Cells(read(path)._repr_html_()).cells.__repr__()


def test_notebook_shows_a_table_of_the_workers_and_the_plot(log):
    shown = Cells(log()._repr_html_())
    assert shown.cells == [
        "worker", "batch size", "time", "waiting",
        "w0", "24", "150 ms", "0 ms",
        "w1", "8", "120 ms", "30 ms",
    ]  # fmt: skip
    assert {"table", "svg"} <= shown.tags
    assert "Waiting 10.0%." in log()._repr_html_()


def test_notebook_without_matplotlib_shows_the_table(log, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = Cells(log()._repr_html_())
    assert "table" in shown.tags and "svg" not in shown.tags


def test_names_of_a_log_do_no_harm(log):
    hostile = log(HOSTILE, job="<b>\x1b[31m")
    text = hostile._repr_html_()
    assert not Cells(text).tags & {"script", "b"}
    assert Cells(text).cells[4::4] == [HOSTILE[0], "w?[31m?1"]
    for shown in (repr(hostile), repr(hostile.segments[0])):
        assert re.search("[\x1b\u202e]", shown) is None
