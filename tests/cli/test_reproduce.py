"""`evenstep reproduce`: which experiments, where results go, and what is printed of them."""

import json

import pytest

from evenstep.reproduce.experiment import Experiment, Skipped
from evenstep.reproduce.experiments import EXPERIMENTS
from evenstep.reproduce.result import Claim, Curve, Plot, Result, Table, beside

COMMAND = "reproduce"


@pytest.fixture
def probes():
    """Two experiments in place of the real ones; the list says what was made."""
    made = []

    def run(settings, progress):
        made.append("probe")
        progress(0.5, "half")
        return Result(
            [Table("a table", "virtual", [{"what": "x", **beside("time", 0.25, 0.5)}])],
            [Plot("a plot", "virtual", "k", "s", [Curve("x", [0, 1], [1.0, 2.0])])],
            [Claim("no", "It rains.", False, why="the sun shines")],
            ["It was another day."],
            seeds=[0],
        )

    def skip(settings, progress):
        made.append("other")
        raise Skipped("it is not allowed here")

    real = dict(EXPERIMENTS)
    EXPERIMENTS.clear()
    for name, action in (("probe", run), ("other", skip)):
        EXPERIMENTS[name] = Experiment(name, f"the {name}", "Fig. 0", "virtual", action)
    yield made
    EXPERIMENTS.clear()
    EXPERIMENTS.update(real)


def test_list_says_what_the_figures_of_each_are(printed):
    text = printed("--list")
    for name in EXPERIMENTS:
        assert name in text
    assert "measured on this machine" in text
    assert "virtual time, simulated" in text


def test_list_as_json(figures):
    rows = figures("--list")
    assert [row["name"] for row in rows] == list(EXPERIMENTS)
    kinds = {row["name"]: row["kinds"] for row in rows}
    assert [name for name in kinds if len(kinds[name]) > 1] == ["micro", "cluster-b", "scale"]
    assert kinds["scale"] == ["virtual", "measured"]


def test_list_has_all_kinds_of_a_mixed_experiment(printed):
    text = " ".join(printed("--list", "scale").split())
    assert "virtual time, simulated; measured on this machine" in text


def test_tables_claims_and_reasons_are_printed(printed, probes, tmp_path):
    text = printed("--quick", "--out", tmp_path)
    assert "a table (virtual time, simulated)" in " ".join(text.split())
    assert "time, paper" in text
    assert "DOES NOT HOLD (paper): It rains. Why: the sun shines." in text
    assert "differs: It was another day." in text
    assert "skipped: it is not allowed here" in text
    assert text.endswith(f"page: {tmp_path / 'index.html'}\n")


def test_results_plots_and_page_are_in_the_folder(printed, probes, tmp_path):
    printed("probe", "--out", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "probe.json", "probe-1.svg", "index.html", "results.md"
    }  # fmt: skip
    assert "a table" in (tmp_path / "index.html").read_text()


def test_markdown_has_tables_claims_and_reasons(printed, probes, tmp_path):
    printed("--quick", "--out", tmp_path)
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert {
        "**a table** (virtual time, simulated)",
        "| what | time | time, paper |",
        "| x | 0.25 | 0.5 |",
        "- **does not hold** (paper): It rains. Why: the sun shines.",
        "- It was another day.",
        "Skipped: it is not allowed here",
    } <= set(lines)
    assert any("`evenstep reproduce probe --quick" in line for line in lines)


def test_json_holds_all_results(figures, probes, tmp_path):
    records = figures("--quick", "--out", tmp_path)
    assert [record["name"] for record in records] == ["probe", "other"]
    assert records[0] == json.loads((tmp_path / "probe.json").read_text())
    assert records[0]["command"] == "evenstep reproduce probe --quick"
    assert records[0]["result"]["tables"][0]["rows"] == [
        {"what": "x", "time": 0.25, "time, paper": 0.5}
    ]


def test_finished_experiments_are_not_made_again_unless_asked_to(printed, probes, tmp_path):
    printed("--out", tmp_path)
    printed("--out", tmp_path)
    assert probes == ["probe", "other", "other"]
    printed("probe", "--out", tmp_path, "--again")
    assert probes[-1] == "probe"


def test_page_has_all_that_was_made_before(printed, probes, tmp_path):
    printed("probe", "--out", tmp_path)
    printed("other", "--out", tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert 'id="probe"' in page
    assert 'id="other"' in page


def test_page_has_pictures_of_all_that_was_made_before(printed, probes, tmp_path):
    printed("probe", "--out", tmp_path)
    (tmp_path / "probe-1.svg").unlink()
    printed("other", "--out", tmp_path)
    assert 'alt="a plot"' in (tmp_path / "index.html").read_text()


def test_unknown_experiment_is_refused(refused):
    message = refused("nope")
    assert message.startswith("experiment must be all or one of cpu-curve, ")
    assert message.endswith("got 'nope'")


def test_damaged_record_is_found_before_anything_is_made(refused, probes, tmp_path):
    (tmp_path / "other.json").write_text("{}")
    assert "remove it to have it made anew" in refused("probe", "--out", tmp_path)
    assert probes == []


def test_record_of_unknown_figures_is_refused(refused, printed, probes, tmp_path):
    printed("probe", "--out", tmp_path)
    file = tmp_path / "probe.json"
    file.write_text(file.read_text().replace('"kind": "virtual"', '"kind": "guessed"', 1))
    assert "kind of 'probe' must be one of" in refused("other", "--out", tmp_path)


def test_quick_run_does_not_overwrite_a_full_one(printed, probes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed("probe")
    printed("probe", "--quick")
    records = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("out/*/probe.json"))]
    assert [record["made_with"]["quick"] for record in records] == [False, True]


def test_data_must_be_a_folder(refused, tmp_path):
    assert "data must be a folder" in refused("gpu-curve", "--data", tmp_path / "none")


def test_progress_is_shown_on_a_terminal(shown, tmp_path):
    text = shown("gpu-curve", "--quick", "--out", tmp_path)
    assert "gpu-curve: 5 of 5 claims hold" in text
