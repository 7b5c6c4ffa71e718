"""Experiments are made once, kept, and shown with where they came from."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from evenstep.errors import FileError, InvalidSetting
from reproduction.data import NAMES, Data
from reproduction.data_check import LOADERS
from reproduction.experiment import Experiment, Settings, Skipped, steps
from reproduction.experiments import EXPERIMENTS
from reproduction.page import page
from reproduction.record import load_record
from reproduction.result import Claim, Curve, Plot, Result, Table, beside
from reproduction.run import chosen, forget, run

NASTY = "<script>alert('$x$ & y')</script>"


def quiet(share, text):
    pass


def make_result(number=1.5):
    return Result(
        tables=[Table(f"of {NASTY}", "virtual", [{"what": NASTY, **beside("x", number, 2)}])],
        plots=[
            Plot(NASTY, "virtual", "k", "s", [Curve(NASTY, [0, 1], [1.0, float("nan")])]),
            Plot("bars", "measured", "", "s", [Curve("a", ["x", "y"], [1.0, None])], bars=True),
        ],
        claims=[
            Claim("good", f"It is {NASTY}.", True),
            Claim("bad", "It is not.", False, "evenstep", NASTY),
        ],
        differences=[NASTY],
        seeds=[0, 7],
    )


def make_experiment(action, name="probe"):
    return Experiment(name, f"a {NASTY}", "Fig. 0", "virtual", action, ("cifar10",))


def counting():
    """Return an experiment that counts how often it was made, and that count."""
    calls = []

    def action(settings, progress):
        calls.append(settings)
        return make_result(number=float(len(calls)))

    return make_experiment(action), calls


def test_result_survives_json():
    result = make_result()
    plain = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert Result.of_json(plain).as_json() == result.as_json()
    assert plain["plots"][0]["curves"][0]["y"] == [1.0, None]


def test_finished_experiment_is_made_again_only_when_asked_to(tmp_path):
    experiment, calls = counting()
    first = run(experiment, Settings(), tmp_path, quiet)
    assert run(experiment, Settings(), tmp_path, quiet) == load_record(tmp_path, "probe")
    assert len(calls) == 1
    forget([experiment], Settings(), tmp_path)
    again = run(experiment, Settings(), tmp_path, quiet)
    assert [r.result.tables[0].rows[0]["x"] for r in (first, again)] == [1.0, 2.0]


def test_quick_result_is_not_taken_for_a_full_one(tmp_path):
    experiment, calls = counting()
    run(experiment, Settings(quick=True), tmp_path, quiet)
    run(experiment, Settings(), tmp_path, quiet)
    assert [settings.quick for settings in calls] == [True, False]


@pytest.mark.parametrize(("name", "times"), [("cifar10.npz", 2), ("url.svm", 1)])
def test_data_that_an_experiment_takes_make_another_result(tmp_path, name, times):
    experiment, calls = counting()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).touch()
    run(experiment, Settings(), tmp_path / "out", quiet)
    run(experiment, Settings(data=Data(tmp_path / "data")), tmp_path / "out", quiet)
    assert len(calls) == times


def test_interrupted_experiment_goes_on_where_it_was(tmp_path):
    made = []

    def part(name):
        made.append(name)
        if len(made) == 2:
            raise KeyboardInterrupt
        return {"made": name}

    def action(settings, progress):
        parts = [
            settings.parts.get(f"{name}/0", lambda name=name: part(name))
            for name in steps(["a", "b"], progress)
        ]
        assert parts == [{"made": "a"}, {"made": "b"}]
        return make_result()

    experiment = make_experiment(action)
    with pytest.raises(KeyboardInterrupt):
        run(experiment, Settings(), tmp_path, quiet)
    assert load_record(tmp_path, "probe") is None
    run(experiment, Settings(), tmp_path, quiet)
    assert made == ["a", "b", "b"]
    assert not (tmp_path / "parts" / "probe").exists()


@pytest.mark.parametrize(
    ("error", "skipped", "failed"),
    [
        (Skipped("no rights"), "no rights", ""),
        (
            ModuleNotFoundError("No module", name="torch.nn"),
            "",
            "torch is not installed; pip install 'evenstep[demo,manager,arima]'",
        ),
    ],
)
def test_what_cannot_be_made_has_its_reason_and_is_tried_again(tmp_path, error, skipped, failed):
    errors = [error]

    def action(settings, progress):
        if errors:
            raise errors.pop()
        return make_result()

    experiment = make_experiment(action)
    result = run(experiment, Settings(), tmp_path, quiet).result
    assert (result.skipped, result.failed) == (skipped, failed)
    assert not run(experiment, Settings(), tmp_path, quiet).result.is_empty


def test_mistake_of_ours_is_no_reason_to_skip(tmp_path):
    def action(settings, progress):
        raise ModuleNotFoundError("gone", name="evenstep.gone")

    with pytest.raises(ModuleNotFoundError):
        run(make_experiment(action), Settings(), tmp_path, quiet)


def test_record_says_how_to_make_it_again(tmp_path):
    record = run(counting()[0], Settings(quick=True), tmp_path, quiet)
    assert record.command == "python -m reproduction probe --quick"
    assert record.result.seeds == [0, 7]
    assert record.date.endswith("+00:00")


def test_damaged_record_is_named(tmp_path):
    (tmp_path / "probe.json").write_text('{"name": "probe"}')
    with pytest.raises(FileError, match=r"probe\.json: must be a record"):
        load_record(tmp_path, "probe")


class Tags(HTMLParser):
    """Collects the tags of a page and where its pictures and links lead to."""

    def __init__(self):
        super().__init__()
        self.tags, self.leads = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.leads += [value for name, value in attrs if name in ("src", "href")]


def test_page_escapes_everything_and_needs_nothing_else(tmp_path):
    record = run(counting()[0], Settings(), tmp_path, quiet)
    skipped = replace(record, name="other", result=Result(skipped=NASTY))
    text = page([record, skipped], tmp_path)
    tags = Tags()
    tags.feed(text)
    assert "script" not in tags.tags
    assert "<script" not in text
    assert all(lead.startswith("#") for lead in tags.leads)
    assert tags.tags.count("svg") == 2 and "img" not in tags.tags
    assert "It is not." in text
    assert "does not" not in text


def test_page_labels_every_table_with_what_its_figures_are(tmp_path):
    record = run(counting()[0], Settings(), tmp_path, quiet)
    assert "(virtual time, simulated)</h3>" in page([record], tmp_path)


def test_page_does_without_pictures(tmp_path):
    record = run(counting()[0], Settings(), tmp_path, quiet)
    for picture in tmp_path.glob("*.svg"):
        picture.unlink()
    assert re.search(r"\bno picture of bars\b", page([record], tmp_path))


def test_registry_loads_nothing_that_only_some_experiments_need():
    code = "import sys, reproduction.experiments; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    needed_by_some = {"torch", "sklearn", "psutil", "thriftpy2", "matplotlib", "statsmodels"}
    assert set(loaded.stdout.split()) & needed_by_some == set()


def test_every_experiment_is_registered_under_its_name():
    assert [name for name, each in EXPERIMENTS.items() if name != each.name] == []


def test_unknown_names_are_refused():
    with pytest.raises(InvalidSetting, match=r"^experiment .*, got 'nope'$"):
        chosen(["nope"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Table("t", "guessed", [{"a": 1}]),
        lambda: Table("t", "virtual", []),
        lambda: Table("t", "virtual", [{"a": 1}, {"b": 1}]),
        lambda: Plot("p", "guessed", "x", "y", []),
    ],
)
def test_table_or_plot_that_cannot_be_shown_is_refused(make):
    with pytest.raises(InvalidSetting, match="must"):
        make()


def test_all_data_can_be_opened():
    assert tuple(LOADERS) == NAMES


def test_data_are_found_by_name(tmp_path):
    batches = tmp_path / "cifar-10-batches-py"
    batches.mkdir()
    (batches / "data_batch_1").touch()
    (tmp_path / "url_svm").mkdir()
    (tmp_path / "url_svm" / "url_combined.svm").touch()
    data = Data(tmp_path)
    assert data.cifar10 == batches
    assert data.urls == tmp_path / "url_svm" / "url_combined.svm"
    assert data.profet is None
    with pytest.raises(InvalidSetting, match="data must be a folder"):
        Data(tmp_path / "nowhere")
