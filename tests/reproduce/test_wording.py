"""What is said of a record is true of what is in it."""

import pytest

from evenstep.reproduce.experiment import Experiment, Settings
from evenstep.reproduce.markdown import markdown
from evenstep.reproduce.page import page
from evenstep.reproduce.result import Curve, Plot, Result, Table
from evenstep.reproduce.run import run

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
