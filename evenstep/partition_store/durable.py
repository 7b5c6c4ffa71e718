"""Durable files: whole or not there, also after the power fails."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.partition_store.rows import Rows, octets_of

SCRATCH = ".scratch-"
"""How the names of files begin that nobody has renamed yet."""


def write_rows(path: Path, dtype: np.dtype[Any], count: int, slabs: Iterable[Rows]) -> None:
    """Write so many rows, which come in slabs, as a .npy file that can be mapped into memory."""
    scratch = path.with_name(f"{SCRATCH}{uuid.uuid4().hex}")
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (count,),
    }
    try:
        with scratch.open("xb") as file:
            np.lib.format.write_array_header_2_0(file, header)
            for slab in slabs:
                file.write(octets_of(slab))
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a file that was renamed, made or deleted."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
