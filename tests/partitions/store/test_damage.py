"""Damaged partitions: the file is named and what is wrong with it, and nothing else is raised."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from evenstep.errors import PartitionError
from evenstep.partitions.handover.giver import GiverRecord
from evenstep.partitions.handover.receiver import ReceiverRecord
from evenstep.partitions.store import Partition, verify
from evenstep.partitions.store.index import read_index, write_index
from tests.partitions.store.folders import content, three_partitions


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    three_partitions(folder)
    return folder


@pytest.fixture
def folders(sound, tmp_path):
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    return [tmp_path / f"w{i}" for i in range(3)]


def flip(path, position, bit=0):
    octets = bytearray(path.read_bytes())
    octets[position] ^= 1 << bit
    path.write_bytes(octets)


def test_sound_partitions_have_no_problems(folders):
    found = verify(folders)
    assert (found.problems, found.num_samples, found.complete) == ((), 60, True)
    assert not verify(folders[:2]).complete


@pytest.mark.parametrize("name", ["index.npz", "blocks/block-00000000.npy"])
def test_every_flipped_bit_that_matters_is_found_and_its_file_named(folders, name):
    path = folders[1] / name
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    before = content(Partition.open(folders[1]))
    found = 0
    for position in rng.choice(len(whole), size=min(150, len(whole)), replace=False):
        flip(path, position, int(rng.integers(8)))
        problems = verify(folders).problems
        if problems:
            assert str(path) in problems[0]
            found += 1
        else:
            # A field of the archive that is never read, or the padding of a header.
            assert content(Partition.open(folders[1])) == before
        path.write_bytes(whole)
    assert found > 100


def test_every_flipped_bit_of_a_row_is_found(folders):
    path = folders[1] / "blocks" / "block-00000000.npy"
    whole = path.read_bytes()
    width = read_index(folders[1]).layout.row.itemsize
    rows = range(len(whole) - 20 * width, len(whole))
    for position in np.random.default_rng(1).choice(rows, size=60, replace=False):
        flip(path, position)
        sample = Partition.open(folders[1]).samples[(position - rows.start) // width]
        assert verify(folders).problems == (f"{path}: sample {sample} must fit the checksum",)
        path.write_bytes(whole)


@pytest.mark.parametrize("name", ["index.npz", "blocks/block-00000000.npy"])
def test_a_file_that_is_cut_or_gone_is_named(folders, name):
    path = folders[0] / name
    whole = path.read_bytes()
    for length in [0, 1, 7, 60, 200, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(PartitionError, match=path.name):
            Partition.open(folders[0])
    path.unlink()
    with pytest.raises(PartitionError, match=path.name):
        Partition.open(folders[0])
    found = verify(folders)
    assert path.name in found.problems[0]
    assert not found.complete


def test_a_lost_and_a_doubled_sample_are_found(folders):
    index = read_index(folders[0])
    write_index(folders[0], index.without((0, 1)))
    assert verify(folders).problems == ("samples 0, 1 must be in a partition, got none",)
    write_index(folders[0], index)
    shutil.copytree(folders[0], folders[2], dirs_exist_ok=True)
    problems = verify(folders).problems
    assert problems[0] == "each partition must be given once, got w0 again"
    assert problems[1] == "sample 0 must be in one partition, got w0, w0"
    assert "20 samples are in several partitions" in problems
    assert problems[-1].startswith("20 samples (4, 5, 10")


def test_samples_that_were_given_and_staged_are_the_receivers(folders):
    zero, one = read_index(folders[0]), read_index(folders[1])
    giving = GiverRecord("h", "w1", (0, 1), 10, one.dataset.layout, "given")
    taking = ReceiverRecord("h", "w0", (0, 1), 10, 80, "staged")
    write_index(folders[0], replace(zero.without((0, 1)), giver_records={"h": giving}))
    assert verify(folders).problems == ("samples 0, 1 must be in a partition, got none",)
    write_index(folders[1], replace(one, receiver_records={"h": taking}))
    found = verify(folders)
    assert (found.problems, found.open_hand_overs) == ((), ("h",))


def test_partitions_of_different_data_are_told_apart(folders, tmp_path):
    (tmp_path / "other").mkdir()
    index = read_index(folders[0])
    write_index(folders[0], replace(index, dataset=replace(index.dataset, digest="another")))
    assert verify(folders).problems == ("partitions must be of one data set, got 2 different ones",)


def test_no_partition_at_all(tmp_path):
    (tmp_path / "empty").mkdir()
    for write in (False, True):
        for name in ("nowhere", "empty"):
            with pytest.raises(PartitionError, match=rf"{name}: .* found none"):
                Partition.open(tmp_path / name, write)
    assert list((tmp_path / "empty").iterdir()) == []
    assert "nowhere" in verify([tmp_path / "nowhere"]).problems[0]
