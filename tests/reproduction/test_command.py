"""`python -m reproduction`: which experiments, where results are kept, and what is printed."""

import json
import pickle
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from evenstep.errors import DataFileError
from reproduction.command import main
from reproduction.data_check import LOADERS
from reproduction.experiment import Experiment, Skipped
from reproduction.experiments import EXPERIMENTS
from reproduction.result import Claim, Curve, Plot, Result, Table, beside
from tests.terminal import shown_on_terminal

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    """However these tests are started, what they print goes to no terminal."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


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


@pytest.fixture
def printed(capsys):
    """Runs a command that must end well, with a line for each experiment at most beside it."""

    def run(*argv):
        code = main(list(map(str, argv)))
        out, err = capsys.readouterr()
        assert code == 0
        assert all(re.fullmatch(r"[a-z]+: .* (s|before)", line) for line in err.splitlines())
        return out

    return run


def no_constants(name):
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture
def figures(printed):
    """Runs a command that must end well, and returns its figures."""

    def run(*argv):
        return json.loads(printed(*argv, "--json"), parse_constant=no_constants)

    return run


@pytest.fixture
def refused(capsys):
    """Runs a command that must be refused, and returns the message."""

    def run(*argv):
        code = main(list(map(str, argv)))
        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        (message,) = err.splitlines()
        assert message.startswith("reproduction: error: ")
        return message.removeprefix("reproduction: error: ")

    return run


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
    assert "Skipped: it is not allowed here" in text
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
    assert any("`python -m reproduction probe --quick" in line for line in lines)


def test_json_holds_all_results(figures, probes, tmp_path):
    records = figures("--quick", "--out", tmp_path)
    assert [record["name"] for record in records] == ["probe", "other"]
    assert records[0] == json.loads((tmp_path / "probe.json").read_text())
    assert records[0]["command"] == "python -m reproduction probe --quick"
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
    assert 'aria-label="a plot"' in (tmp_path / "index.html").read_text()


def test_unknown_experiment_is_refused(refused):
    message = refused("nope")
    assert message.startswith("experiment ")
    assert message.endswith(f" {', '.join(EXPERIMENTS)}, got 'nope'")


def test_damaged_record_is_found_before_anything_is_made(refused, probes, tmp_path):
    (tmp_path / "other.json").write_text("{}")
    assert re.search(r"other\.json: .*\bremove it\b", refused("probe", "--out", tmp_path))
    assert probes == []


def test_record_of_unknown_figures_is_refused(refused, printed, probes, tmp_path):
    printed("probe", "--out", tmp_path)
    file = tmp_path / "probe.json"
    file.write_text(file.read_text().replace('"kind": "virtual"', '"kind": "guessed"', 1))
    assert re.search(r"kind of 'probe' .*, got 'guessed'", refused("other", "--out", tmp_path))


def test_quick_run_does_not_overwrite_a_full_one(printed, probes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed("probe")
    printed("probe", "--quick")
    records = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("out/*/probe.json"))]
    assert [record["made_with"]["quick"] for record in records] == [False, True]


def test_data_must_be_a_folder(refused, tmp_path):
    assert "data must be a folder" in refused("gpu-curve", "--data", tmp_path / "none")


@pytest.fixture
def foreign(tmp_path):
    """A folder of files that are not what their names say."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("url_x.svm.gz", "data_batch_1", "machine_usage_hour.csv.gz"):
        (folder / name).write_bytes(bytes(range(256)) * 10)
    (folder / "profet_batch_latency.csv").write_text("a,b\n1,2\n")
    return folder


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cluster-a", "data_batch_1: "),
        ("cluster-b", "url_x.svm.gz: must be text, or text that gzip packed"),
        ("gpu-curve", "profet_batch_latency.csv: must be PROFET's latencies"),
        ("predictors", "machine_usage_hour.csv.gz: must be the usage of machines"),
    ],
)
def test_foreign_data_are_refused_before_anything_is_made(
    refused, foreign, monkeypatch, tmp_path, name, message
):
    monkeypatch.setattr("reproduction.command.run_experiment", None)
    assert message in refused("modern", name, "--data", foreign, "--out", tmp_path)


def test_one_batch_is_no_cifar10(refused, tmp_path):
    batch = {b"data": np.zeros((1, 3072), np.uint8), b"labels": [0]}
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(batch))
    message = refused("accuracy", "--data", tmp_path, "--out", tmp_path / "out")
    assert "data_batch_2: cannot be read" in message


def test_data_that_are_not_taken_are_not_opened(printed, foreign, probes, tmp_path):
    printed("--data", foreign, "--out", tmp_path)
    EXPERIMENTS["probe"] = replace(EXPERIMENTS["probe"], data=("cifar10",))
    printed("--data", foreign, "--out", tmp_path, "--quick")
    assert probes == ["probe", "other"] * 2


def test_data_of_what_is_finished_are_not_opened_unless_it_is_made_again(
    refused, printed, foreign, probes, tmp_path, monkeypatch
):
    EXPERIMENTS["probe"] = replace(EXPERIMENTS["probe"], data=("cifar10",))
    with monkeypatch.context() as patch:
        patch.setitem(LOADERS, "cifar10", lambda path: None)
        printed("probe", "--data", foreign, "--out", tmp_path)
    printed("probe", "--data", foreign, "--out", tmp_path)
    assert "data_batch_1: " in refused("probe", "--data", foreign, "--out", tmp_path, "--again")
    # And what was finished is still there.
    printed("probe", "--data", foreign, "--out", tmp_path)
    assert probes == ["probe"]


def test_failure_of_one_experiment_is_said_and_the_others_go_on(capsys, probes, tmp_path):
    def fail(settings, progress):
        raise DataFileError("url.svm:20000: a label must be a finite number, got 'x'")

    working = EXPERIMENTS.pop("probe")
    EXPERIMENTS["broken"] = replace(working, name="broken", run=fail)
    EXPERIMENTS["probe"] = working
    assert main(["--out", str(tmp_path)]) == 1
    assert probes == ["other", "probe"]
    said = "Failed: url.svm:20000: a label must be a finite number, got 'x'"
    assert said in capsys.readouterr().out
    assert said in unescape((tmp_path / "index.html").read_text())
    assert said in (tmp_path / "results.md").read_text().splitlines()
    EXPERIMENTS["broken"] = replace(working, name="broken")
    assert main(["--out", str(tmp_path)]) == 0


def test_where_there_is_no_terminal_a_line_is_shown_of_each_experiment(capsys, probes, tmp_path):
    assert main(["--out", str(tmp_path)]) == 0
    said = re.sub(r"[0-9.]+ s$", "TIME", capsys.readouterr().err, flags=re.MULTILINE)
    probe, other = said.splitlines()
    assert re.fullmatch(r"probe: 0 of 1 claims .*, TIME", probe)
    assert re.fullmatch(r"other: Skipped: .*, TIME", other)
    assert main(["probe", "--out", str(tmp_path)]) == 0
    assert re.fullmatch(r"probe: 0 of 1 claims .*, finished before\n", capsys.readouterr().err)


def test_nothing_is_shown_beside_json(capsys, probes, tmp_path):
    assert main(["--out", str(tmp_path), "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_progress_is_shown_on_a_terminal(tmp_path):
    text = shown_on_terminal("reproduction", "gpu-curve", "--quick", "--out", tmp_path, cwd=ROOT)
    assert "gpu-curve: 5 of 5 claims hold" in text
