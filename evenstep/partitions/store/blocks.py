"""Blocks: the files with the rows of a partition. They are written once and never changed.

A file is whole or not there, also after the power fails. A chunk that a receiver has on disk is a
block that no index lists yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.core.archive import replacing
from evenstep.errors import PartitionError
from evenstep.partitions.handover.protocol import chunk_of, num_chunks
from evenstep.partitions.handover.receiver import ReceiverRecord
from evenstep.partitions.store.rows import Rows, intact, octets_of

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


def write_rows(path: Path, dtype: np.dtype[Any], count: int, slabs: Iterable[Rows]) -> None:
    """Write `count` rows, which come in slabs, as a .npy file that can be mapped into memory."""
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (count,),
    }
    with replacing(path) as file:
        np.lib.format.write_array_header_2_0(file, header)
        for slab in slabs:
            file.write(octets_of(slab))


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


def stored_chunks(folder: Path, record: ReceiverRecord, dtype: np.dtype[Any]) -> frozenset[int]:
    """Return the chunks of a hand-over that are on disk and intact."""
    every = range(num_chunks(len(record.samples), record.chunk_size))
    return frozenset(number for number in every if _is_stored(folder, record, number, dtype))


def is_chunk(rows: Rows, record: ReceiverRecord, number: int) -> bool:
    """Whether rows are those of a chunk, and intact."""
    samples = np.array(chunk_of(record.samples, record.chunk_size, number), dtype=np.int64)
    return bool(np.array_equal(rows["sample"], samples) and intact(rows).all())


def _is_stored(folder: Path, record: ReceiverRecord, number: int, dtype: np.dtype[Any]) -> bool:
    count = len(chunk_of(record.samples, record.chunk_size, number))
    try:
        rows = map_block(folder, chunk_name(record.hand_over, number), dtype, count)
    except PartitionError:
        return False
    return is_chunk(rows, record, number)
