"""Archives: arrays in one file, written atomically and protected by a checksum.

A file is an .npz archive without pickles, with a checksum over everything else in it. A lock keeps
their folder to one process, and is released when that process ends.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core.rows import Arrays
from evenstep.errors import StateFileError


def write_archive(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays atomically: after a crash there is the old file or the new one."""
    content = io.BytesIO()
    np.savez(content, checksum=np.array(_checksum(arrays)), **arrays)  # type: ignore[arg-type]
    replace_file(path, content.getbuffer())


def parse_archive(content: bytes, what: str, version: int, parts: Sequence[str]) -> Arrays:
    """Return the arrays of a file of `what`, which must hold these parts, or raise StateFileError.

    The part `format` is the version of the format.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:
        # The readers of zip and npy raise almost any error for a truncated, changed or foreign
        # file.
        raise StateFileError(f"not a file of {what}, or a damaged one: {error}") from error
    for name in ("format", "checksum", *parts):
        if name not in arrays:
            raise StateFileError(f"a file of {what} must hold {name!r}")
    checksum = str(arrays.pop("checksum"))
    if str(arrays["format"]) != str(version):
        raise StateFileError(f"the format must be {version}, got {arrays['format']}")
    if checksum != _checksum(arrays):
        raise StateFileError("damaged: the content does not fit its checksum")
    return arrays


def _checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Write a file atomically: after a crash there is the old one or the new one."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that takes the place of another at the end of the block.

    After a crash or a power failure there is the old file or the new one, whole; after the block,
    the new one. If the block fails, the old one stays.
    """
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with scratch.open("xb") as file:
            yield file
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
    except OSError as error:
        # Some network file systems cannot sync folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def lock_folder(folder: Path) -> IO[str] | None:
    """Lock a folder for as long as the result is kept open; None where another process has it."""
    file = (folder / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
