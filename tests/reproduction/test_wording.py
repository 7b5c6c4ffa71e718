"""What is said of a record is true of what is in it."""

import json
import os
import subprocess
from dataclasses import replace

import pytest

from evenstep import __version__
from reproduction.checkout import commit_of
from reproduction.experiment import Experiment, Settings
from reproduction.markdown import markdown
from reproduction.page import page
from reproduction.result import Curve, Plot, Result, Table
from reproduction.run import run
from reproduction.wording import about

MIXED = "virtual time, simulated; measured on this machine"
PLOT = Plot("a plot", "measured", "k", "s", [Curve("a", [0, 1], [1.0, 2.0])])


def table(kind):
    return Table(f"of kind {kind}", kind, [{"a": 1}])


@pytest.fixture
def record(tmp_path):
    """Makes an experiment that gives this result, and returns its record."""

    def make(result):
        def action(settings, progress):
            return result

        experiment = Experiment("probe", "a probe", "section 0", "virtual", action)
        return run(experiment, Settings(), tmp_path, lambda share, text: None)

    return make


def test_time_of_parts_that_were_finished_before_is_said_not_to_be_in_it(record):
    whole = record(Result([table("virtual")]))
    assert " s on " in about(whole)
    for kept, words in ((1, "1 part that"), (12, "12 parts that")):
        words = f" s (without {words} had been finished before) on "
        assert words in about(replace(whole, kept_parts=kept))


@pytest.mark.parametrize(
    ("kind", "said"), [("measured", True), ("emulated", True), ("virtual", False)]
)
def test_how_busy_the_machine_was_is_said_of_what_was_measured(record, kind, said):
    made = replace(record(Result([table(kind)])), load=[0.25, 1.5])
    words = "load average 0.25 at the start and 1.5 at the end"
    assert (words in about(made)) is said
    assert "load average" not in about(replace(made, load=[]))


def test_load_is_recorded_at_the_start_and_at_the_end(record, monkeypatch):
    loads = iter([(0.5, 0, 0), (1.25, 0, 0)])
    monkeypatch.setattr(os, "getloadavg", lambda: next(loads))
    assert record(Result([table("measured")])).load == [0.5, 1.25]


def test_machine_without_a_load_average_has_none(record, monkeypatch):
    monkeypatch.delattr(os, "getloadavg")
    assert record(Result([table("measured")])).load == []


def test_commit_is_said_where_it_is_known(record):
    made = record(Result([table("virtual")]))
    assert f"Evenstep {__version__} (v1-2-gabc), " in about(replace(made, commit="v1-2-gabc"))
    assert f"Evenstep {__version__}, " in about(replace(made, commit=""))


def test_commit_is_that_of_a_checkout_and_of_nothing_around_it(tmp_path, monkeypatch):
    def git(*arguments):
        who = ("user.name=a", "user.email=a@example.org")
        # The user's git may sign commits by default.
        unsigned = ("commit.gpgsign=false", "tag.gpgSign=false")
        options = [part for option in (*who, *unsigned) for part in ("-c", option)]
        subprocess.run(["git", "-C", str(tmp_path), *options, *arguments], check=True)

    git("init", "-q")
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-qm", "one")
    git("tag", "-am", "one", "v1")
    assert commit_of.__wrapped__(tmp_path) == "v1"
    (tmp_path / "file").write_text("b")
    assert commit_of.__wrapped__(tmp_path) == "v1-dirty"
    (tmp_path / "lib").mkdir()
    assert commit_of.__wrapped__(tmp_path / "lib") == ""
    monkeypatch.setenv("PATH", "")
    assert commit_of.__wrapped__(tmp_path) == ""


def test_neither_load_nor_commit_make_another_result(record, monkeypatch):
    first = record(Result([table("measured")]))
    monkeypatch.setattr("reproduction.record.commit_of", lambda: "another")
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0, 0))
    assert record(Result([table("virtual")])).as_json() == json.loads(json.dumps(first.as_json()))


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (Result([table("virtual"), table("measured"), table("virtual")]), MIXED),
        (Result([table("virtual")]), "virtual time, simulated"),
        (Result([table("measured")]), "measured on this machine"),
        (Result([table("virtual")], [PLOT]), MIXED),
        (Result(skipped="it is not allowed here"), "-"),
    ],
)
def test_figures_are_said_to_be_what_the_tables_and_plots_are(record, tmp_path, result, words):
    made = record(result)
    shown = page([made], tmp_path)
    assert f"<td>section 0</td><td>{words}</td>" in shown
    assert f'<p class="source">section 0; {words}</p>' in shown
    assert f"| probe | section 0 | {words} |" in markdown([made])
