"""Archives: files that replace others are whole and durable."""

import errno
import os

import numpy as np
import pytest

from evenstep.core.archive import replacing, write_archive
from evenstep.partitions.store.blocks import write_rows


def synced(path, monkeypatch, write):
    """Return the files that are synced while one is written, each with whether that is there."""
    found = []
    fsync = os.fsync

    def record(descriptor):
        found.append((os.fstat(descriptor).st_ino, path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    write()
    return found


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_archive(path, {"format": np.array(1)}),
        lambda path: write_rows(path, np.dtype("<i8"), 3, [np.arange(3)]),
    ],
    ids=["archive", "block"],
)
def test_file_is_synced_before_it_takes_its_name_and_the_folder_afterwards(
    tmp_path, monkeypatch, write
):
    path = tmp_path / "file"
    found = synced(path, monkeypatch, lambda: write(path))
    assert found == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


def test_old_file_stays_if_the_new_one_fails(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="full"), replacing(path) as file:
        file.write(b"ne")
        raise OSError(errno.ENOSPC, "the disk is full")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("number", "is_error"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_folder_that_cannot_be_synced_is_no_error_and_a_failing_disk_is(
    tmp_path, monkeypatch, number, is_error
):
    def fail_for_folders(descriptor):
        if os.fstat(descriptor).st_ino == tmp_path.stat().st_ino:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    failed = False
    try:
        write_archive(tmp_path / "file", {})
    except OSError:
        failed = True
    assert failed == is_error
    assert (tmp_path / "file").exists()
