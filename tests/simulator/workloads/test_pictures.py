"""CIFAR-10 from both kinds of files, digits in its shape, and invalid files."""

import pickle

import numpy as np
import pytest

from evenstep.errors import DataFileError
from evenstep.simulator.workloads.pictures import load_pictures, upscaled_digits
from evenstep.simulator.workloads.safe_pickle import load_pickle


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (50, 32, 32, 3)).astype(np.uint8),
        "y_train": rng.integers(0, 10, 50),
        "x_test": rng.integers(0, 256, (10, 32, 32, 3)).astype(np.uint8),
        "y_test": rng.integers(0, 10, 10),
    }


def save_batches(folder, arrays):
    """Write them as the authors of CIFAR-10 do: five parts, channels first, keys as bytes."""
    for i, part in enumerate(np.split(np.arange(50), 5)):
        save_batch(folder / f"data_batch_{i + 1}", arrays["x_train"][part], arrays["y_train"][part])
    save_batch(folder / "test_batch", arrays["x_test"], arrays["y_test"])


def save_batch(path, pictures, labels):
    rows = pictures.transpose(0, 3, 1, 2).reshape(len(pictures), -1)
    path.write_bytes(pickle.dumps({b"data": rows, b"labels": labels.tolist()}, protocol=2))


def test_a_folder_and_an_archive_of_the_same_pictures_are_the_same(tmp_path, arrays):
    save_batches(tmp_path, arrays)
    np.savez(tmp_path / "all.npz", **arrays)
    folder, archive = load_pictures(str(tmp_path)), load_pictures(str(tmp_path / "all.npz"))
    for one, other in ((folder.train, archive.train), (folder.test, archive.test)):
        assert all(bool((a == b).all()) for a, b in zip(one.tensors, other.tensors, strict=True))
    pictures, labels = archive.train.tensors
    assert (pictures.permute(0, 2, 3, 1).numpy() == arrays["x_train"]).all()
    assert (labels.numpy() == arrays["y_train"]).all()


def test_mean_and_deviation_are_those_of_the_channels(tmp_path, arrays):
    np.savez(tmp_path / "all.npz", **arrays)
    pictures = load_pictures(str(tmp_path / "all.npz"))
    np.testing.assert_allclose(pictures.mean, arrays["x_train"].mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(pictures.deviation, arrays["x_train"].std(axis=(0, 1, 2)))


def test_without_a_path_there_are_digits():
    pictures = upscaled_digits()
    images, labels = pictures.train.tensors
    assert (pictures.name, images.shape, len(labels)) == (
        "digits-as-pictures", (1536, 3, 32, 32), 1536,
    )  # fmt: skip
    assert (images.min().item(), images.max().item()) == (0, 255)
    # Each point is 4 x 4 equal ones, in three equal channels.
    assert bool((images[:, :, ::4, ::4] == images[:, :, 3::4, 3::4]).all())
    assert bool((images[:, 0] == images[:, 2]).all())


class _Malicious:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_a_pickle_that_would_run_something_is_refused(tmp_path, capsys):
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": _Malicious()}))
    with pytest.raises(DataFileError, match=r"must be a pickle of .*: it asks for builtins\.print"):
        load_pickle(path)
    assert capsys.readouterr().out == ""


class _Pointers:
    """Bytes disguised as objects: reading one would follow it as a pointer."""

    class _DType:
        def __reduce__(self):
            return np.dtype, ("O8", False, True), (3, "|", None, None, None, -1, -1, 0)

    def __reduce__(self):
        return np.zeros(0).__reduce_ex__(5)[0], (b"\1" * 8, self._DType(), (1,), "C")


def test_a_pickle_cannot_make_objects_out_of_bytes(tmp_path):
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(_Pointers()))
    with pytest.raises(DataFileError, match=r"data_batch_1: .*type 'O8'$"):
        load_pickle(path)


def test_arrays_of_objects_are_refused(tmp_path):
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(np.array([None, "x"])))
    with pytest.raises(DataFileError, match=r"data_batch_1: .*type 'O8'$"):
        load_pickle(path)


def test_arrays_of_any_byte_order_and_layout_are_read(tmp_path):
    path = tmp_path / "data_batch_1"
    for array in (np.arange(6, dtype=">i4").reshape(2, 3), np.asfortranarray([[1, 2], [3, 4]])):
        for protocol in (2, 4, 5):
            path.write_bytes(pickle.dumps(array, protocol))
            np.testing.assert_array_equal(load_pickle(path), array)


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps(1, protocol=2)[:-1]])
def test_a_file_that_is_not_a_pickle_is_refused(tmp_path, content):
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(DataFileError, match=r"data_batch_1: .*\bpickle\b"):
        load_pickle(path)


def test_arrays_and_scalars_are_loaded(tmp_path):
    path = tmp_path / "some"
    for protocol in range(2, 6):
        path.write_bytes(pickle.dumps([np.arange(3.0), np.int64(4), "x", {1: b"y"}], protocol))
        array, number, *rest = load_pickle(path)
        assert (array.tolist(), number, rest) == ([0, 1, 2], 4, ["x", {1: b"y"}])


def change(arrays, **others):
    return {name: array for name, array in {**arrays, **others}.items() if array is not None}


@pytest.mark.parametrize(
    ("others", "problem"),
    [
        ({"y_test": None}, "must have x_train, y_train, x_test, y_test, got none of y_test"),
        (
            {"x_train": np.zeros((50, 32, 32, 3))},
            "pictures must be bytes of shape (N, 32, 32, 3), got float64 of shape (50, 32, 32, 3)",
        ),
        (
            {"x_train": np.zeros((50, 28, 28), dtype=np.uint8)},
            "pictures must be bytes of shape (N, 32, 32, 3), got uint8 of shape (50, 28, 28)",
        ),
        (
            {"y_train": np.zeros(49, dtype=int)},
            "labels must be 50 whole numbers, got int64 of shape (49,)",
        ),
        ({"y_train": np.full(50, 10)}, "labels must be 0 to 9, got 10 to 10"),
    ],
)
def test_a_wrong_archive_is_refused(tmp_path, arrays, others, problem):
    path = tmp_path / "wrong.npz"
    np.savez(path, **change(arrays, **others))
    with pytest.raises(DataFileError) as caught:
        load_pictures(str(path))
    assert str(caught.value) == f"{path}: {problem}"


def test_invalid_and_missing_archives_are_refused(tmp_path):
    path = tmp_path / "none.npz"
    with pytest.raises(DataFileError, match=r"none\.npz: .*: No such file"):
        load_pictures(str(path))
    path.write_bytes(b"PK nothing")
    with pytest.raises(DataFileError, match=r"none\.npz: "):
        load_pictures(str(path))


def test_a_folder_without_batches_is_refused(tmp_path):
    with pytest.raises(DataFileError, match=r"data_batch_1: .*: No such file"):
        load_pictures(str(tmp_path))
    for i in range(1, 6):
        (tmp_path / f"data_batch_{i}").write_bytes(pickle.dumps({b"data": 1}))
    with pytest.raises(DataFileError, match=r"data_batch_1: .*\bdata and labels\b"):
        load_pictures(str(tmp_path))
