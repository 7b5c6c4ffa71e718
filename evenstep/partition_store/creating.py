"""Making partitions: the samples of a data set dealt to a folder per worker."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core.arrays import Ints
from evenstep.errors import InvalidSetting, PartitionError
from evenstep.partition.dealing import check_dealt
from evenstep.partition.hand_over import check_name
from evenstep.partition_store.blocks import BLOCKS, block_path
from evenstep.partition_store.durable import sync_folder, write_rows
from evenstep.partition_store.index import FILE, DataSet, Index, write_index
from evenstep.partition_store.rows import Rows, seal
from evenstep.partition_store.sources import Source, source_of

_SLAB = 1024
"""Samples that are in memory at the same time."""

_BLOCK = "block-00000000"


def create_partitions(
    folders: Sequence[str | Path],
    data: Any,
    dealt: Sequence[Ints],
    label: str | None = None,
    quota: int | None = None,
) -> None:
    """Make a partition in each folder, named after it, with the samples that it is dealt.

    `data` is an array, a tuple or dict of arrays with a row per sample, or a data set with a length
    and a sample at each position. `label` names the field that samples are stratified by (fields of
    tuples are called "0", "1" and so on), `quota` is the number of bytes for rows in each folder.
    """
    paths = [Path(folder) for folder in folders]
    source = source_of(data)
    check_dealt(dealt, len(source))
    _check(paths, source, dealt, label, quota)
    checksums = np.zeros(len(source), dtype="<u4")
    for path, samples in zip(paths, dealt, strict=True):
        (path / BLOCKS).mkdir(parents=True, exist_ok=True)
        slabs = _sealed(source, np.sort(samples), checksums)
        write_rows(block_path(path, _BLOCK), source.layout.row, len(samples), slabs)
        sync_folder(path)
    digest = hashlib.sha256(checksums.tobytes()).hexdigest()
    dataset = DataSet(digest, len(source), len(paths), source.layout.text, label)
    for path, samples in zip(paths, dealt, strict=True):
        none: Ints = np.zeros(0, dtype=np.int64)
        index = Index(path.resolve().name, dataset, none, none, none, (), quota=quota)
        write_index(path, index.joined_by(_BLOCK, np.sort(samples)))


def _sealed(source: Source, samples: Ints, checksums: NDArray[Any]) -> Iterator[Rows]:
    for start in range(0, len(samples), _SLAB):
        some = samples[start : start + _SLAB]
        rows = seal(source.layout, some, source.take(some))
        checksums[some] = rows["crc"]
        yield rows


def _check(
    paths: Sequence[Path],
    source: Source,
    dealt: Sequence[Ints],
    label: str | None,
    quota: int | None,
) -> None:
    names = [path.resolve().name for path in paths]
    if len(paths) != len(dealt) or len(set(names)) < len(names):
        raise InvalidSetting(f"folders must be {len(dealt)} of different names, got {names}")
    for name in names:
        check_name("partition", name)
    if label is not None:
        if label not in source.layout.names:
            known = ", ".join(map(repr, source.layout.names))
            raise InvalidSetting(f"the label must be one of the fields {known}, got {label!r}")
        field = source.layout.data[label]
        if field.shape or field.kind not in "biu":
            raise InvalidSetting(f"the label must be a whole number per sample, got {field}")
    for path, samples in zip(paths, dealt, strict=True):
        if (path / FILE).exists():
            raise PartitionError(f"{path / FILE}: there is a partition already")
        num_bytes = len(samples) * source.layout.row.itemsize
        if quota is not None and num_bytes > quota:
            raise InvalidSetting(f"the quota must hold {num_bytes} bytes in {path}, got {quota}")
