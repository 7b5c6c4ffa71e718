"""Partitions on disk: what goes in comes out, and changes are whole."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from evenstep.errors import InvalidSetting, PartitionError
from evenstep.partitions.store import Partition, create_partitions, verify
from evenstep.partitions.store.blocks import BLOCKS
from tests.partitions.store.folders import NUM_SAMPLES, content, pictures, three_partitions

ALL = [np.arange(5)]


class Squares:
    """A data set as PyTorch has them."""

    def __len__(self):
        return 5

    def __getitem__(self, position):
        return np.full((2,), position, dtype=np.float32), position**2


def test_every_sample_comes_out_as_it_went_in(tmp_path):
    images, labels = pictures()
    found = {}
    for folder in three_partitions(tmp_path):
        partition = Partition.open(folder)
        assert partition.name == folder.name
        for position, sample in enumerate(partition.samples):
            found[int(sample)] = partition[position]
        batch = partition.take(np.array([3, 0]))
        assert batch[0].tolist() == images[partition.samples[[3, 0]]].tolist()
        assert partition.labels is not None
        assert partition.labels.tolist() == labels[partition.samples].tolist()
    assert sorted(found) == list(range(NUM_SAMPLES))
    for sample, (image, label) in found.items():
        assert image.dtype == np.float32
        assert (image.tolist(), label) == (images[sample].tolist(), labels[sample])


@pytest.mark.parametrize(
    "data, sample",
    [
        (np.arange(5.0), 3.0),
        ({"x": np.arange(5), "y": np.arange(5) * 2}, {"x": 3, "y": 6}),
        ((np.arange(5), np.arange(5) > 2), (3, True)),
    ],
)
def test_a_sample_has_the_form_of_the_data(tmp_path, data, sample):
    create_partitions([tmp_path / "w"], data, ALL)
    assert Partition.open(tmp_path / "w")[3] == sample


def test_data_sets_are_read_sample_by_sample(tmp_path):
    dealt = [np.array([4, 0]), np.array([1, 2, 3])]
    create_partitions([tmp_path / "a", tmp_path / "b"], Squares(), dealt, label="1")
    partition = Partition.open(tmp_path / "a")
    first, second = partition[0], partition[1]
    assert (first[0].tolist(), first[1]) == ([0, 0], 0)
    assert (second[0].tolist(), second[1]) == ([4, 4], 16)
    assert partition.labels is not None
    assert partition.labels.tolist() == [0, 16]


def test_a_sample_may_be_changed_without_changing_the_partition(tmp_path):
    partition = Partition.open(three_partitions(tmp_path)[0])
    partition[3][0][:] = -1
    partition.take(np.arange(5))[0][:] = -1
    assert content(partition) == {s: s for s in partition.samples.tolist()}


def test_another_process_reads_the_same_snapshot_without_getting_the_rows(tmp_path):
    folder = tmp_path / "w"
    create_partitions([folder], np.zeros((5, 100000), dtype=np.uint8), ALL)
    with Partition.open(folder, write=True) as partition:
        before = pickle.dumps(partition)
        assert len(before) < 10000
        partition.update(partition.index.without((0, 1)))
        copy = pickle.loads(before)
        assert (copy.samples.tolist(), copy[4].shape) == ([0, 1, 2, 3, 4], (100000,))
        with pytest.raises(InvalidSetting, match="opened with write=True"):
            copy.update(copy.index)


def test_torch_loads_batches_from_a_partition(tmp_path):
    data = pytest.importorskip("torch.utils.data")
    partition = Partition.open(three_partitions(tmp_path)[0])
    images, labels = next(iter(data.DataLoader(partition, batch_size=20)))
    assert images[:, 0, 0].tolist() == partition.samples.tolist()
    assert partition.labels is not None
    assert labels.tolist() == partition.labels.tolist()


def test_tensors_are_taken(tmp_path):
    torch = pytest.importorskip("torch")
    samples = torch.utils.data.TensorDataset(torch.arange(10.0).reshape(5, 2), torch.arange(5))
    create_partitions([tmp_path / "w"], samples, ALL)
    x, y = Partition.open(tmp_path / "w")[3]
    assert (x.tolist(), x.dtype, int(y)) == ([6, 7], np.float32, 3)


class Odd(Squares):
    def __getitem__(self, position):
        return np.zeros(position + 1)


@pytest.mark.parametrize(
    "data, dealt, settings, wrong",
    [
        (Odd(), ALL, {}, r"all samples must be single .*\(1,\).* got .*\(2,\).* at 1"),
        (np.array(list("abcde")), ALL, {}, "field '0' of a sample must be of numbers, got <U1"),
        ((np.zeros(5), np.zeros(4)), ALL, {}, r"a row per sample, got lengths .*'1': 4"),
        (5, ALL, {}, "a data set must have a length and samples, got 5"),
        (np.zeros(5), [[0, 1]], {}, r"each of 5 samples must be dealt once, got \[2\]"),
        (np.zeros(5), [[0, 1, 2, 3, 3]], {}, "each of 5 samples must be dealt once"),
        (np.zeros(5), ALL, {"label": "y"}, "one of the fields '0', got 'y'"),
        (np.zeros(5), ALL, {"label": "0"}, "the label must be a whole number per sample"),
        (np.zeros(5), ALL, {"quota": 99}, "quota must hold 100 bytes in .*w, got 99"),
    ],
)
def test_what_cannot_be_stored_is_refused(tmp_path, data, dealt, settings, wrong):
    with pytest.raises(InvalidSetting, match=wrong):
        create_partitions([tmp_path / "w"], data, dealt, **settings)
    assert not (tmp_path / "w" / "index.npz").exists()


def test_a_partition_is_not_overwritten(tmp_path):
    create_partitions([tmp_path / "w"], np.zeros(5), ALL)
    with pytest.raises(PartitionError, match=r"w/index\.npz: "):
        create_partitions([tmp_path / "w"], np.zeros(5), ALL)


def test_one_process_at_a_time_may_change_it(tmp_path):
    folder = three_partitions(tmp_path)[0]
    with (
        Partition.open(folder, write=True),
        pytest.raises(PartitionError, match=r"w0: .* process"),
    ):
        Partition.open(folder, write=True)
    Partition.open(folder, write=True).close()


def test_who_only_reads_cannot_change_it(tmp_path):
    partition = Partition.open(three_partitions(tmp_path)[0])
    with pytest.raises(InvalidSetting, match="opened with write=True"):
        partition.update(partition.index)


def test_compaction_frees_what_has_left_and_readers_go_on(tmp_path):
    folder = three_partitions(tmp_path)[0]
    reader = Partition.open(folder)
    before = content(reader)
    with Partition.open(folder, write=True) as partition:
        width = partition.num_bytes // 20
        gone = tuple(partition.samples[:15].tolist())
        partition.update(partition.index.without(gone))
        assert (len(partition), partition.num_bytes) == (5, 20 * width)
        assert partition.compact() == 15 * width
        assert partition.compact() == 0
        assert content(partition) == {s: s for s in before if s not in gone}
    assert content(reader) == before
    assert len(list((folder / BLOCKS).iterdir())) == 1
    assert content(Partition.open(folder)) == {s: s for s in before if s not in gone}


def test_what_a_crash_left_is_deleted_when_it_is_opened_for_writing(tmp_path):
    folder = three_partitions(tmp_path)[0]
    for name in ("block-00000007.npy", ".scratch-1", "m1-0.000000.npy"):
        (folder / BLOCKS / name).write_bytes(b"half")
    (folder / ".index.npz.0123").write_bytes(b"half")
    assert verify([folder]).problems == ()
    Partition.open(folder, write=True).close()
    assert [path.name for path in (folder / BLOCKS).iterdir()] == ["block-00000000.npy"]
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "blocks", "index.npz"]


def test_an_index_without_its_block_is_never_written(tmp_path):
    folder = three_partitions(tmp_path)[0]
    with Partition.open(folder, write=True) as partition:
        ghost = partition.index.joined_by("ghost", np.array([1000]))
        with pytest.raises(PartitionError, match=r"ghost\.npy: .*index"):
            partition.update(ghost)
    assert len(Partition.open(folder)) == 20


def test_versions_rise(tmp_path):
    with Partition.open(three_partitions(tmp_path)[0], write=True) as partition:
        partition.update(replace(partition.index, quota=10**6))
        partition.update(partition.index)
        assert partition.index.version == 2
        assert partition.room == 10**6 - partition.num_bytes
