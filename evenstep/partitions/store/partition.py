"""A partition on disk: samples to read, and changes that are whole or not made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from evenstep.core import Ints
from evenstep.core.archive import lock_folder, sync_folder
from evenstep.errors import InvalidSetting, PartitionError
from evenstep.partitions.store.blocks import BLOCKS, block_path, map_block, write_rows
from evenstep.partitions.store.index import FILE, Index, read_index, write_index
from evenstep.partitions.store.rows import Rows, intact

_ENDLESS = 2**62


class Partition:
    """The samples of one worker, in a folder.

    Reading it is reading a snapshot: later changes show when it is opened again, and rows
    that are compacted away meanwhile stay readable here. One process at a time may change it.
    """

    def __init__(self, folder: Path, index: Index, lock: IO[str] | None) -> None:
        self.folder = folder
        self._lock = lock
        self._index, self._layout = index, index.layout
        self._blocks = self._map(index, {})

    @classmethod
    def open(cls, folder: str | Path, write: bool = False) -> Partition:
        """Open a partition, to read it or to change it too."""
        folder = Path(folder)
        lock = _lock(folder) if write else None
        try:
            partition = cls._open(folder, lock)
            if write:
                partition.tidy()
            return partition
        except BaseException:
            if lock is not None:
                lock.close()
            raise

    @classmethod
    def _open(cls, folder: Path, lock: IO[str] | None) -> Partition:
        index = read_index(folder)
        try:
            return cls(folder, index, lock)
        except PartitionError:
            if read_index(folder).version == index.version:
                raise
        # Blocks were compacted away between reading the index and opening them.
        return cls._open(folder, lock)

    @property
    def index(self) -> Index:
        """The samples of the partition, and its hand-overs."""
        return self._index

    @property
    def name(self) -> str:
        return self._index.name

    @property
    def samples(self) -> Ints:
        """The numbers of its samples in the whole data set, rising."""
        return self._index.samples

    def __len__(self) -> int:
        return len(self._index.samples)

    def __getitem__(self, position: int) -> Any:
        """Return a sample, as the data set that the partition was made from had it."""
        if not -len(self) <= position < len(self):
            raise IndexError(f"position must be within {len(self)} samples, got {position}")
        block, row = self._index.block[position], self._index.row[position]
        # A copy, which may be changed: the rows are mapped for reading only.
        return self._layout.unpack(self._blocks[block][row]["data"].copy())

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process, such as a loader's, maps the same rows to read them.
        return Partition, (self.folder, self._index, None)

    def take(self, positions: Ints) -> Any:
        """Return the arrays of several samples, stacked: a batch."""
        return self._layout.unpack(self.gather(np.asarray(positions))["data"])

    @property
    def labels(self) -> Ints | None:
        """The label of each sample, where a field was named as such."""
        return self.labels_at(np.arange(len(self)))

    def labels_at(self, positions: Ints) -> Ints | None:
        """Return the labels of some samples; nothing else of their rows is read."""
        label = self._index.dataset.label
        if label is None:
            return None
        labels = np.zeros(len(positions), dtype=np.int64)
        block, row = self._index.block[positions], self._index.row[positions]
        for number in np.unique(block):
            here = block == number
            labels[here] = self._blocks[number]["data"][label][row[here]]
        return labels

    def rows(self, samples: Ints) -> Rows:
        """Return the rows of samples; damaged ones raise PartitionError."""
        positions = np.searchsorted(self.samples, samples)
        rows = self.gather(positions)
        wrong = ~(intact(rows) & (rows["sample"] == samples))
        if wrong.any():
            first = int(np.argmax(wrong))
            block = int(self._index.block[positions[first]])
            path = block_path(self.folder, self._index.blocks[block][0])
            raise PartitionError(f"{path}: sample {samples[first]} does not fit its checksum")
        return rows

    def gather(self, positions: Ints) -> Rows:
        """Return the rows at positions, as they are."""
        block, row = self._index.block[positions], self._index.row[positions]
        numbers = np.unique(block)
        if len(numbers) == 1:
            rows: Rows = self._blocks[numbers[0]][row]
            return rows
        rows = np.zeros(len(positions), dtype=self._layout.row)
        for number in numbers:
            here = block == number
            rows[here] = self._blocks[number][row[here]]
        return rows

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows on disk and of those about to come, also of samples that have left."""
        width = self._layout.row.itemsize
        coming = sum(r.num_bytes for r in self._index.receiver_records.values() if not r.final)
        return width * sum(rows for _, rows in self._index.blocks) + coming

    @property
    def room(self) -> int:
        """How many bytes the quota leaves."""
        quota = self._index.quota
        return _ENDLESS if quota is None else max(0, quota - self.num_bytes)

    def update(self, index: Index) -> None:
        """Replace the index, on disk and then here."""
        if self._lock is None:
            raise InvalidSetting(f"a partition must be opened with write=True, got {self.folder}")
        index = replace(index, version=self._index.version + 1)
        names = (name for name, _ in self._index.blocks)
        blocks = self._map(index, dict(zip(names, self._blocks, strict=True)))
        write_index(self.folder, index)
        self._index, self._blocks = index, blocks

    def note(self, index: Index) -> None:
        """Replace the index here only, where the files on disk show the same."""
        self._index = index

    def write_block(self, name: str, rows: Rows) -> None:
        """Write rows that no index lists yet."""
        write_rows(block_path(self.folder, name), rows.dtype, len(rows), [rows])

    def compact(self) -> int:
        """Copy all listed rows into one block, delete the others; return the bytes set free."""
        before = self.num_bytes
        if len(self._index.blocks) == 1 and self._index.blocks[0][1] == len(self):
            return 0
        name = f"block-{self._index.version + 1:08d}"
        self.write_block(name, self.rows(self.samples))
        bare = replace(self._index, blocks=(), samples=self.samples[:0])
        bare = replace(bare, block=self._index.block[:0], row=self._index.row[:0])
        self.update(bare.joined_by(name, self.samples))
        self.tidy()
        return before - self.num_bytes

    def tidy(self) -> None:
        """Delete files that nothing refers to: rows compacted away, or of failed hand-overs."""
        referred = self._index.referred_blocks
        files = (self.folder / BLOCKS).iterdir()
        stray = [path for path in files if path.suffix != ".npy" or path.stem not in referred]
        for path in [*self.folder.glob(f".{FILE}.*"), *stray]:
            path.unlink(missing_ok=True)
        sync_folder(self.folder / BLOCKS)

    def close(self) -> None:
        """Release the lock, so that others can change the partition."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Partition:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _map(self, index: Index, known: Mapping[str, Rows]) -> tuple[Rows, ...]:
        """Return the blocks of an index, and open those that are not open yet."""
        return tuple(
            known[name] if name in known else map_block(self.folder, name, self._layout.row, rows)
            for name, rows in index.blocks
        )


def _lock(folder: Path) -> IO[str]:
    """Lock a partition against changes by others, for as long as the result is open."""
    if not (folder / FILE).exists():
        raise PartitionError(f"{folder}: a partition must have an {FILE}, found none")
    lock = lock_folder(folder)
    if lock is None:
        raise PartitionError(f"{folder}: another process is changing it")
    return lock
