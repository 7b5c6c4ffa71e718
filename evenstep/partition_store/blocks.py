"""Blocks: the files with the rows of a partition. They are written once and never changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import PartitionError
from evenstep.partition.hand_over import chunk_of, num_chunks
from evenstep.partition.taking import Taking
from evenstep.partition_store.index import FILE, Index
from evenstep.partition_store.rows import Rows, intact

BLOCKS = "blocks"


def block_path(folder: Path, name: str) -> Path:
    """Return the file of a block."""
    return folder / BLOCKS / f"{name}.npy"


def chunk_name(hand_over: str, number: int) -> str:
    """Return the block that a chunk becomes; it is there before any index lists it.

    >>> chunk_name("m1-0", 3)
    'm1-0.000003'
    """
    return f"{hand_over}.{number:06d}"


def map_block(folder: Path, name: str, dtype: np.dtype[Any], count: int) -> Rows:
    """Return the rows of a block, mapped into memory, or say what is wrong with it."""
    path = block_path(folder, name)
    try:
        # A plain array: of a memmap, every slice costs a look at what it is a slice of.
        rows: Rows = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    except FileNotFoundError:
        raise PartitionError(f"{path}: the index lists it, and it is not there") from None
    except OSError:
        raise
    except Exception as error:
        # A damaged header makes numpy raise almost anything.
        raise PartitionError(f"{path}: damaged, {error}") from error
    if rows.dtype != dtype or rows.shape != (count,):
        raise PartitionError(
            f"{path}: must hold {count} rows as in the index, got {rows.shape} of {rows.dtype}"
        )
    return rows


def stored_chunks(folder: Path, taking: Taking, dtype: np.dtype[Any]) -> frozenset[int]:
    """Return the chunks of a hand-over that are on disk, and as they should be."""
    every = range(num_chunks(len(taking.samples), taking.chunk_size))
    return frozenset(number for number in every if _is_stored(folder, taking, number, dtype))


def is_chunk(rows: Rows, taking: Taking, number: int) -> bool:
    """Whether rows are those of a chunk, and whole."""
    samples = np.array(chunk_of(taking.samples, taking.chunk_size, number), dtype=np.int64)
    return bool(np.array_equal(rows["sample"], samples) and intact(rows).all())


def stray_files(folder: Path, index: Index) -> Iterator[Path]:
    """Return the files that neither the index nor an open hand-over refers to."""
    yield from folder.glob(f".{FILE}.*")
    listed = {name for name, _ in index.blocks}
    for taking in index.takings.values():
        if not taking.final:
            every = range(num_chunks(len(taking.samples), taking.chunk_size))
            listed |= {chunk_name(taking.hand_over, number) for number in every}
    for path in (folder / BLOCKS).iterdir():
        if path.stem not in listed or path.suffix != ".npy":
            yield path


def _is_stored(folder: Path, taking: Taking, number: int, dtype: np.dtype[Any]) -> bool:
    count = len(chunk_of(taking.samples, taking.chunk_size, number))
    try:
        rows = map_block(folder, chunk_name(taking.hand_over, number), dtype, count)
    except PartitionError:
        return False
    return is_chunk(rows, taking, number)
