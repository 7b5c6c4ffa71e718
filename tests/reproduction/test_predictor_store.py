"""Predictors in files."""

import io
import zipfile

import numpy as np
import pytest

from evenstep.errors import InvalidSetting, StateFileError
from evenstep.predictors.ema import Ema
from evenstep.predictors.narx import make_narx
from reproduction.predictor_store import load, save
from tests.predictors.examples import QUICK, assert_same_state, follow_cpu, teach

WORKERS = ["a", "b", "c"]


def taught_ema(*speeds):
    ema = Ema(len(speeds))
    ema.observe(np.array(speeds), np.ones(len(speeds)), np.ones(len(speeds)))
    return ema


def now(predictor, cpu=1.0):
    return predictor.predict(np.full(predictor.num_workers, cpu), np.ones(predictor.num_workers))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "speeds.npz"
    save(path, "ema", taught_ema(10.0, 20.0, 60.0), WORKERS)
    return path


def test_file_gives_back_what_was_saved(path):
    ema = Ema(3)
    load(path, "ema", ema, WORKERS)
    assert_same_state(ema.state(), taught_ema(10.0, 20.0, 60.0).state())


def test_rows_are_found_by_name_and_unknown_workers_start_fresh(path):
    ema = Ema(4)
    load(path, "ema", ema, ["c", "new", "a", "other"])
    assert now(ema).tolist() == [60.0, 35.0, 10.0, 35.0]


def test_what_was_learned_before_is_forgotten(path):
    ema = taught_ema(1.0, 2.0, 3.0)
    load(path, "ema", ema, ["a", "new", "c"])
    assert now(ema).tolist() == [10.0, 35.0, 60.0]


def test_another_job_starts_from_the_shared_network(tmp_path):
    path = tmp_path / "narx.npz"
    old, new = make_narx(3, **QUICK), make_narx(2, **QUICK)
    teach(old, *follow_cpu(100, [60.0, 90.0, 31.0]))
    save(path, "narx", old, WORKERS)
    load(path, "narx", new, ["x", "y"])
    assert not new.trained.any()
    speeds, cpu, memory = follow_cpu(20, [45.0, 200.0], seed=1)
    predictions = teach(new, speeds, cpu, memory)
    np.testing.assert_allclose(predictions[5:], speeds[5:], rtol=0.25)


def test_recurring_job_starts_with_its_models(tmp_path):
    path = tmp_path / "narx.npz"
    old, new = make_narx(3, **QUICK), make_narx(3, **QUICK)
    teach(old, *follow_cpu(100, [60.0, 90.0, 31.0]))
    save(path, "narx", old, WORKERS)
    load(path, "narx", new, WORKERS[::-1])
    assert new.trained.all()
    np.testing.assert_array_equal(now(new, 0.5), now(old, 0.5)[::-1])


def test_saving_replaces_the_file_and_leaves_nothing_else(path):
    save(path, "ema", taught_ema(5.0), ["a"])
    ema = Ema(1)
    load(path, "ema", ema, ["a"])
    assert now(ema).tolist() == [5.0]
    assert [file.name for file in path.parent.iterdir()] == ["speeds.npz"]


def test_failed_saving_leaves_the_old_file(path, monkeypatch):
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save(path, "ema", taught_ema(5.0), ["a"])
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["speeds.npz"]


def assert_refused(path, message, kind="ema"):
    ema = taught_ema(1.0, 2.0, 3.0)
    before = ema.state()
    with pytest.raises(StateFileError, match=message) as raised:
        load(path, kind, ema, WORKERS)
    assert str(path) in str(raised.value)
    assert_same_state(ema.state(), before)


def test_another_kind_is_refused(path):
    assert_refused(path, "the kind of predictor must be 'kalman', got 'ema'", kind="kalman")


def test_truncated_file_is_refused_wherever_it_was_cut(path):
    content = path.read_bytes()
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        assert_refused(path, "damaged")


def test_changed_bytes_are_refused_or_do_not_matter(path):
    content = path.read_bytes()
    intact = taught_ema(10.0, 20.0, 60.0).state()
    for place in range(0, len(content), 31):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        ema = Ema(3)
        try:
            load(path, "ema", ema, WORKERS)
        except StateFileError:
            assert_same_state(ema.state(), Ema(3).state())
        else:
            assert_same_state(ema.state(), intact)


def rewritten(path, **changes):
    """Write the file anew with other content, its checksum left as it was."""
    with np.load(path) as archive:
        arrays = {**archive, **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def test_content_that_does_not_fit_the_checksum_is_refused(path):
    rewritten(path, **{"state.mean": np.array([10.0, 20.0, 61.0])})
    assert_refused(path, "damaged: the content does not fit its checksum")


def test_another_format_is_refused(path):
    rewritten(path, format=np.array(2))
    assert_refused(path, "the format must be 1, got 2")


def test_missing_part_is_refused(path):
    rewritten(path, workers=None)
    assert_refused(path, "must hold 'workers'")


def test_state_that_does_not_fit_the_predictor_is_refused(tmp_path):
    path = tmp_path / "narx.npz"
    save(path, "narx", make_narx(2, hidden=5), ["a", "b"])
    narx = make_narx(2, hidden=6)
    with pytest.raises(StateFileError, match="saved 'parameters' must be"):
        load(path, "narx", narx, ["a", "b"])


def pickled():
    content = io.BytesIO()
    np.savez(content, format=np.array([object()], dtype=object))
    return content.getvalue()


def archived(name, content):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(name, content)
    return archive.getvalue()


def single_array():
    content = io.BytesIO()
    np.save(content, np.arange(3))
    return content.getvalue()


FOREIGN = {
    "empty": b"",
    "text": b"alpha = 0.2\n",
    "pickled objects": pickled(),
    "another archive": archived("readme.txt", "hello"),
    "an array cut in an archive": archived("format.npy", single_array()[:20]),
    "a single array": single_array(),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_foreign_file_is_refused(path, content):
    path.write_bytes(content)
    assert_refused(path, "file of saved predictors")


def test_missing_file_is_said_as_such(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing.npz", "ema", Ema(1), ["a"])


@pytest.mark.parametrize("workers", [["a", "b"], ["a", "b", "b"]])
def test_workers_must_be_those_of_the_predictor(path, workers):
    for act in (save, load):
        with pytest.raises(InvalidSetting, match="workers must be 3 different names"):
            act(path, "ema", Ema(3), workers)
