"""What is kept in a folder is taken for what it is, and nothing else is touched."""

import re
from contextlib import suppress
from dataclasses import replace

import pytest

from evenstep.errors import DataFileError, InvalidSetting
from reproduction.data import NAMES, Data
from reproduction.experiment import Experiment, Settings
from reproduction.page import page
from reproduction.parts import Parts
from reproduction.record import load_record, save_record
from reproduction.result import Curve, Plot, Result
from reproduction.run import forget, run

FULL, QUICK = Settings(), Settings(quick=True)


def quiet(share, text):
    pass


def make_experiment(name="probe", stops=(), shares=False):
    """Return an experiment of two parts, and what it made; it stops before these."""
    made, left = [], list(stops)

    def part(which):
        if which in left:
            left.remove(which)
            raise KeyboardInterrupt
        made.append(which)
        return which

    def action(settings, progress):
        kept = settings.shared if shares else settings.parts
        for which in (1, 2):
            kept.get(str(which), lambda which=which: part(which))
        plot = Plot("a plot", "virtual", "k", "s", [Curve("x", [0, 1], [1.0, 2.0])])
        return Result(plots=[plot])

    return Experiment(name, "a probe", "section 0", "virtual", action, NAMES, shares), made


def interrupted(out, **how):
    experiment, made = make_experiment(stops=(2,), **how)
    with pytest.raises(KeyboardInterrupt):
        run(experiment, FULL, out, quiet)
    return experiment, made


@pytest.mark.parametrize("shares", [True, False])
def test_record_counts_the_parts_that_were_finished_before(tmp_path, shares):
    experiment, _ = interrupted(tmp_path, shares=shares)
    assert run(experiment, FULL, tmp_path, quiet).kept_parts == 1
    whole, _ = make_experiment("whole")
    assert run(whole, FULL, tmp_path, quiet).kept_parts == 0


def test_part_that_is_asked_for_twice_was_not_there_before(tmp_path):
    parts = Parts(tmp_path)
    for _ in range(2):
        parts.get("a", lambda: 1)
    assert parts.taken == set()


def test_quick_run_leaves_the_parts_of_an_interrupted_full_one(tmp_path):
    experiment, made = interrupted(tmp_path)
    run(experiment, QUICK, tmp_path, quiet)
    made.clear()
    run(experiment, FULL, tmp_path, quiet)
    assert made == [2]
    assert not (tmp_path / "parts").exists()


def test_only_what_is_to_be_made_again_is_forgotten(tmp_path):
    one, made = interrupted(tmp_path, name="one")
    other, others = interrupted(tmp_path, name="other")
    forget([one], FULL, tmp_path)
    made.clear(), others.clear()
    for experiment in (one, other):
        run(experiment, FULL, tmp_path, quiet)
    assert (made, others) == ([1, 2], [2])


@pytest.mark.parametrize(("shares", "again"), [(True, [1, 2]), (False, [2])])
def test_trainings_are_forgotten_with_who_shows_them(tmp_path, shares, again):
    experiment, made = interrupted(tmp_path, shares=True)
    forget([make_experiment("another", shares=shares)[0]], FULL, tmp_path)
    made.clear()
    run(experiment, FULL, tmp_path, quiet)
    assert made == again


def test_making_anew_goes_on_where_it_was_interrupted(tmp_path):
    one, ones = make_experiment("one")
    other, others = make_experiment("other")
    for experiment in (one, other):
        run(experiment, FULL, tmp_path, quiet)
    ones.clear(), others.clear()
    forget([one, other], FULL, tmp_path)
    run(one, FULL, tmp_path, quiet)
    # Interrupted here: the next run makes the other part, and keeps the first.
    for experiment in (one, other):
        run(experiment, FULL, tmp_path, quiet)
    assert (ones, others) == ([1, 2], [1, 2])


def test_results_of_other_settings_are_not_forgotten(tmp_path):
    experiment, made = make_experiment()
    run(experiment, FULL, tmp_path, quiet)
    made.clear()
    forget([experiment], QUICK, tmp_path)
    run(experiment, FULL, tmp_path, quiet)
    assert made == []


def test_record_of_the_former_command_is_taken(tmp_path):
    experiment, made = make_experiment()
    record = run(experiment, FULL, tmp_path, quiet)
    count = len(made)
    save_record(tmp_path, replace(record, command="evenstep reproduce probe"))
    assert run(experiment, FULL, tmp_path, quiet).command == "evenstep reproduce probe"
    assert len(made) == count


def test_folders_of_others_are_left_alone(tmp_path):
    mine = [tmp_path / "parts" / "mine", tmp_path / "trainings" / "mine"]
    for folder in mine:
        folder.mkdir(parents=True)
    experiment, _ = make_experiment(shares=True)
    forget([experiment], FULL, tmp_path)
    run(experiment, FULL, tmp_path, quiet)
    assert all(folder.is_dir() for folder in mine)


def test_other_content_under_the_same_name_makes_another_result(tmp_path):
    experiment, made = make_experiment()
    for content in ("a", "b", "b"):
        (tmp_path / "cifar10.npz").write_text(content)
        run(experiment, Settings(data=Data(tmp_path)), tmp_path / "out", quiet)
    assert made == [1, 2] * 2


def test_quick_record_names_no_data_that_it_does_not_take(tmp_path):
    (tmp_path / "cifar10.npz").touch()
    (tmp_path / "profet_batch_latency.csv").touch()
    experiment, _ = make_experiment()
    for settings, names in ((QUICK, ["profet"]), (FULL, ["cifar10", "profet"])):
        made = Settings(settings.quick, Data(tmp_path))
        record = run(experiment, made, tmp_path / "out", quiet)
        assert list(record.made_with["data"]) == names


def test_parts_of_a_failed_experiment_are_kept(tmp_path):
    experiment, made = make_experiment()
    steps = iter([DataFileError("url.svm: cannot be read"), None])

    def action(settings, progress):
        result = experiment.run(settings, progress)
        if (error := next(steps)) is not None:
            raise error
        return result

    failing = replace(experiment, run=action)
    assert run(failing, FULL, tmp_path, quiet).result.failed == "url.svm: cannot be read"
    assert run(failing, FULL, tmp_path, quiet).result.failed == ""
    assert made == [1, 2]
    assert not (tmp_path / "parts").exists()


def test_folder_without_any_data_is_refused(tmp_path):
    with pytest.raises(InvalidSetting, match=r"at least one of cifar10, urls.*got '.*'"):
        Data(tmp_path)


def no_matplotlib(*arguments):
    raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")


def killed(*arguments):
    raise KeyboardInterrupt


def test_picture_of_former_figures_is_not_shown(tmp_path, monkeypatch):
    experiment, _ = make_experiment()
    run(experiment, FULL, tmp_path, quiet)
    monkeypatch.setattr("reproduction.run.save_pictures", no_matplotlib)
    forget([experiment], FULL, tmp_path)
    run(experiment, FULL, tmp_path, quiet)
    record = load_record(tmp_path, "probe")
    assert record is not None
    assert re.search(r"\bno picture of a plot\b", page([record], tmp_path))


@pytest.mark.parametrize("drawing", [killed, no_matplotlib])
def test_picture_that_is_missing_is_drawn_of_what_is_finished(tmp_path, monkeypatch, drawing):
    experiment, made = make_experiment()
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr("reproduction.run.save_pictures", drawing)
        run(experiment, FULL, tmp_path, quiet)
    assert list(tmp_path.glob("*.svg")) == []
    record = run(experiment, FULL, tmp_path, quiet)
    assert made == [1, 2]
    assert "There is no picture" not in page([record], tmp_path)


def test_picture_that_is_there_is_not_drawn_again(tmp_path, monkeypatch):
    experiment, _ = make_experiment()
    run(experiment, FULL, tmp_path, quiet)
    monkeypatch.setattr("reproduction.drawing.draw", killed)
    run(experiment, FULL, tmp_path, quiet)


def test_whoever_is_killed_behind_the_record_leaves_no_former_picture(tmp_path, monkeypatch):
    def save_and_be_killed(*arguments):
        save_record(*arguments)
        raise KeyboardInterrupt

    experiment, _ = make_experiment()
    run(experiment, QUICK, tmp_path, quiet)
    monkeypatch.setattr("reproduction.run.save_record", save_and_be_killed)
    with pytest.raises(KeyboardInterrupt):
        run(experiment, FULL, tmp_path, quiet)
    assert list(tmp_path.glob("*.svg")) == []
