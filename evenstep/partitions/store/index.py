"""The index of a partition: which samples it has, where their rows are, and its hand-overs.

Everything that has to change together is in this one file, and changes by being replaced: that a
hand-over is `given` and that its samples are gone is one write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.core import Ints
from evenstep.core.archive import parse_archive, write_archive
from evenstep.errors import EvenstepError, PartitionError
from evenstep.partitions.handover.giver import GiverRecord
from evenstep.partitions.handover.protocol import num_chunks
from evenstep.partitions.handover.receiver import ReceiverRecord
from evenstep.partitions.store.blocks import chunk_name
from evenstep.partitions.store.rows import Layout

FORMAT = 1
FILE = "index.npz"


@dataclass(frozen=True)
class DataSet:
    """The values that all partitions of a data set share."""

    digest: str
    """A checksum over the checksums of all samples."""
    num_samples: int
    num_partitions: int
    layout: str
    label: str | None = None
    """The field by which samples are stratified."""


@dataclass(frozen=True, eq=False)
class Index:
    """The content of a partition at a moment; `samples` rise, `block` and `row` are parallel."""

    name: str
    dataset: DataSet
    samples: Ints
    block: Ints
    """In which of the blocks the row of each sample is."""
    row: Ints
    """Which row of it."""
    blocks: tuple[tuple[str, int], ...]
    """The names of the files with rows, and how many rows they have."""
    version: int = 0
    """Rises with every change."""
    quota: int | None = None
    """How many bytes the rows may take on disk; None for no limit."""
    giver_records: Mapping[str, GiverRecord] = field(default_factory=dict)
    receiver_records: Mapping[str, ReceiverRecord] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return Layout.parse(self.dataset.layout)

    @property
    def open_records(self) -> tuple[GiverRecord | ReceiverRecord, ...]:
        """The records of hand-overs that were begun and are not over."""
        every: list[GiverRecord | ReceiverRecord] = [
            *self.giver_records.values(),
            *self.receiver_records.values(),
        ]
        return tuple(record for record in every if not record.final)

    @property
    def open_hand_overs(self) -> frozenset[str]:
        """The names of the open hand-overs."""
        return frozenset(record.hand_over for record in self.open_records)

    @property
    def referred_blocks(self) -> frozenset[str]:
        """The names of all blocks that are listed here, or that an open hand-over may have made."""
        coming = (record for record in self.receiver_records.values() if not record.final)
        chunks = (
            chunk_name(record.hand_over, number)
            for record in coming
            for number in range(num_chunks(len(record.samples), record.chunk_size))
        )
        return frozenset(name for name, _ in self.blocks).union(chunks)

    def without(self, samples: tuple[int, ...]) -> Index:
        """Return the index after samples have left; their rows stay until they are compacted."""
        stays = ~np.isin(self.samples, np.array(samples, dtype=np.int64))
        return replace(
            self, samples=self.samples[stays], block=self.block[stays], row=self.row[stays]
        )

    def joined_by(self, name: str, samples: Ints) -> Index:
        """Return the index after samples have arrived: the rows of another block, in its order."""
        every = np.concatenate([self.samples, samples])
        order = np.argsort(every, kind="stable")
        block = np.concatenate([self.block, np.full(len(samples), len(self.blocks))])
        row = np.concatenate([self.row, np.arange(len(samples))])
        return replace(
            self,
            samples=every[order],
            block=block[order],
            row=row[order],
            blocks=(*self.blocks, (name, len(samples))),
        )


def write_index(folder: Path, index: Index) -> None:
    """Replace the index; a crash leaves the old one or the new one."""
    about = {
        "name": index.name,
        "dataset": asdict(index.dataset),
        "blocks": index.blocks,
        "version": index.version,
        "quota": index.quota,
        "givings": [vars(record) for record in index.giver_records.values()],
        # The files on disk show which chunks of an open hand-over have arrived.
        "takings": [vars(record) | {"chunks": ()} for record in index.receiver_records.values()],
    }
    arrays = {
        "format": np.array(FORMAT),
        "about": np.array(json.dumps(about)),
        "samples": index.samples,
        "block": index.block,
        "row": index.row,
    }
    write_archive(folder / FILE, arrays)


def read_index(folder: Path) -> Index:
    """Read the index of a partition, or say which file is wrong and why."""
    path = folder / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise PartitionError(f"{folder}: a partition must have an {FILE}, found none") from None
    try:
        arrays = parse_archive(content, "an index", FORMAT, ("about", "samples", "block", "row"))
        return _index(json.loads(str(arrays["about"])), arrays)
    except EvenstepError as error:
        raise PartitionError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise PartitionError(f"{path}: an index must be whole, {error!r}") from error


def _index(about: Any, arrays: Mapping[str, Any]) -> Index:
    index = Index(
        about["name"],
        DataSet(**about["dataset"]),
        arrays["samples"],
        arrays["block"],
        arrays["row"],
        tuple((str(name), int(rows)) for name, rows in about["blocks"]),
        int(about["version"]),
        about["quota"],
        {record["hand_over"]: _record(GiverRecord, record) for record in about["givings"]},
        {record["hand_over"]: _record(ReceiverRecord, record) for record in about["takings"]},
    )
    lengths = np.array([rows for _, rows in index.blocks] or [0])
    if not len(index.samples) == len(index.block) == len(index.row):
        raise ValueError("samples, blocks and rows must be equally many")
    if np.any(np.diff(index.samples) <= 0) or np.any(index.row >= lengths[index.block]):
        raise ValueError("samples must rise, and their rows be in the blocks")
    return index


def _record(kind: Any, record: dict[str, Any]) -> Any:
    chunks = {"chunks": frozenset(record["chunks"])} if "chunks" in record else {}
    return kind(**{**record, "samples": tuple(record["samples"]), **chunks})
