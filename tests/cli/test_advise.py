"""``evenstep advise``: what it says about run logs, clusters and times from elsewhere."""

import re

import pytest

from evenstep.runlog import Event
from tests.runlog.examples import header, row, text_of

COMMAND = "advise"


@pytest.fixture
def observed(tmp_path):
    """The log of a run that was only observed; the second worker is 3 times slower."""
    path = tmp_path / "run.jsonl"
    rows = (row(k, [16, 16], [0.1, 0.3], waiting=[0.2, 0.0]) for k in range(20))
    path.write_text(
        text_of(
            header(source="measured", settings={"mode": "observe"}, policy="observe_only"),
            *rows,
            Event("end", 20),
        )
    )
    return path


def test_observed_run_is_told_what_balancing_would_gain(printed, observed):
    said = printed(observed)
    assert re.search(r"cut .* from 300 ms \(plain BSP\) to 1[45]\d ms \(", said)
    assert "measured on real workers" in said
    assert "Straggler: w1, 1.5 times slower than the median worker." in said
    assert "+ balancer = Balancer(model, total=32)" in said
    assert "Simulated" not in said


def test_json_has_the_same(figures, observed):
    advice = figures(observed, "--workers-out", 1)
    assert sum(advice["batch_sizes"]) == 32 and 24 <= advice["batch_sizes"][0] <= 26
    assert advice["balanced"]["value"] == pytest.approx(0.15, rel=0.1)
    assert advice["balanced"]["low"] < 0.15 < advice["balanced"]["high"]
    assert advice["selection"]["left_out"] == ["w1"]
    assert advice["straggler"]["worker"] == "w1"
    assert advice["times_without"] == pytest.approx([0.6, 0.2], rel=0.1)


def test_same_seed_gives_the_same_advice(figures, observed):
    assert figures(observed) == figures(observed)


def test_simulated_clusters_are_called_simulated(printed):
    assert printed("A:4").startswith("Simulated:")


def test_hostile_names_are_shown_as_they_can_be(printed, tmp_path):
    path = tmp_path / "run.jsonl"
    workers = ("[bold]\x1b[31mx", "\u202e]")
    rows = (row(k, [16, 16], [0.1, 0.3]) for k in range(9))
    path.write_text(text_of(header(workers=workers), *rows))
    said = printed(path)
    assert "\x1b" not in said and "\u202e" not in said and "[bold]" in said


def test_hostile_names_are_told_in_errors_as_they_can_be(refused, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header(workers=("\x1b[31mx",)), row(0, [32], [0.1])))
    assert re.search(r"at least 2 workers, got 1 \(\?\[31mx\)$", refused(path))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "give either RUNLOG|CLUSTER or --times FILE, got neither"),
        (("G", "--times", "t.csv"), "give either RUNLOG|CLUSTER or --times FILE, got both"),
        (("G", "--batch-sizes", "8"), "--batch-sizes goes with --times"),
        (("nope",), "A, B, G, P, S, M, identical, got 'nope', which is none of them"),
        (("nope.toml",), "nope.toml: cannot be read: No such file"),
        (("A:4", "--workers-out", "4"), "from 0 to 3, got 4"),
        (("--times", "t", "--batch-sizes", "8,x"), "must be a whole number >= 1, got 'x'"),
    ],
)
def test_mistakes_are_named(refused, argv, message):
    assert message in refused(*argv)


def test_log_without_iterations_is_refused(refused, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header()))
    assert re.search(r"at least 3 iterations, got .*none$", refused(path))
