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

from evenstep.core import UNLIMITED, Ints, SavedState
from evenstep.core.archive import parse_archive, write_archive
from evenstep.errors import EvenstepError, PartitionError, StateFileError
from evenstep.partitions.handover.giver import GiverRecord
from evenstep.partitions.handover.protocol import num_chunks, wrong_terms
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
    except (RecursionError, ValueError) as error:
        raise PartitionError(f"{path}: an index must be whole, {error!r}") from error


def _index(about: object, arrays: Mapping[str, Any]) -> Index:
    saved = SavedState(
        "an index", about, "name", "dataset", "blocks", "version", "quota", "givings", "takings"
    )
    dataset = _dataset(saved["dataset"])
    blocks = tuple(_block(saved, block) for block in saved.items("blocks"))
    listed = SavedState("an index", arrays)
    count = np.size(arrays["samples"])
    samples, block, row = (listed.wholes(name, count) for name in ("samples", "block", "row"))
    if np.any(np.diff(samples) <= 0):
        raise listed.wrong("samples", "numbers that rise")
    if np.any(block >= len(blocks)):
        raise listed.wrong("block", f"numbers below {len(blocks)}, the number of blocks")
    if np.any(row >= np.array([rows for _, rows in blocks] or [0])[block]):
        raise listed.wrong("row", "numbers of rows that the blocks have")
    return Index(
        saved.text("name"),
        dataset,
        samples,
        block,
        row,
        blocks,
        saved.whole("version"),
        None if saved["quota"] is None else saved.whole("quota"),
        {record.hand_over: record for record in map(_giver_record, saved.items("givings"))},
        {record.hand_over: record for record in map(_receiver_record, saved.items("takings"))},
    )


def _dataset(about: object) -> DataSet:
    saved = SavedState(
        "a data set", about, "digest", "num_samples", "num_partitions", "layout",
        "label",
    )  # fmt: skip
    layout, label = saved.text("layout"), saved["label"]
    fields = Layout.parse(layout).names
    if label is not None and label not in fields:
        raise saved.wrong("label", "one of the fields, or None")
    return DataSet(
        saved.text("digest"),
        saved.whole("num_samples", most=UNLIMITED),
        saved.whole("num_partitions", least=1, most=UNLIMITED),
        layout,
        label,
    )


def _block(saved: SavedState, block: object) -> tuple[str, int]:
    """Return the name of a block, which is that of a file in the folder, and its rows."""
    if not (isinstance(block, (list, tuple)) and len(block) == 2):
        raise saved.wrong("blocks", "names with numbers of rows")
    pair = SavedState("a block", {"name": block[0], "rows": block[1]})
    name = pair.text("name")
    if not name or Path(name).name != name or "\0" in name:
        raise pair.wrong("name", "the name of a file")
    return name, pair.whole("rows", most=UNLIMITED)


def _giver_record(record: object) -> GiverRecord:
    saved = SavedState("a hand-over", record, "receiver", "layout", *_TERMS)
    terms = _terms(saved, ("offered", "given", "settled", "withdrawn"))
    return GiverRecord(receiver=saved.text("receiver"), layout=saved.text("layout"), **terms)


def _receiver_record(record: object) -> ReceiverRecord:
    saved = SavedState("a hand-over", record, "giver", "num_bytes", *_TERMS)
    terms = _terms(saved, ("staging", "staged", "adopted", "dropped"))
    return ReceiverRecord(giver=saved.text("giver"), num_bytes=saved.whole("num_bytes"), **terms)


_ANY = -(2**63)
_TERMS = ("hand_over", "samples", "chunk_size", "phase", "reason")
"""What the records of both sides of a hand-over have."""


def _terms(saved: SavedState, phases: tuple[str, ...]) -> dict[str, Any]:
    samples = saved.wholes("samples", len(saved.items("samples")), least=_ANY)
    if saved.text("phase") not in phases:
        raise saved.wrong("phase", f"one of {', '.join(phases)}")
    hand_over, chunk_size = saved.text("hand_over"), saved.whole("chunk_size", least=_ANY)
    # A hand-over that was refused at once is recorded with the terms for which it was.
    if saved["phase"] in phases[:2] and (
        problem := wrong_terms(hand_over, samples.tolist(), chunk_size)
    ):
        raise StateFileError(problem)
    return {
        "hand_over": hand_over,
        "samples": tuple(samples.tolist()),
        "chunk_size": chunk_size,
        "phase": saved["phase"],
        "reason": saved.text("reason"),
    }
