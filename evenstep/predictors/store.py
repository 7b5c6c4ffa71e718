"""Predictors in files: what one run has learned, for the next one or for another job.

A file is an .npz archive without pickles: the predictor's state, array by array, and beside it
the version of this format, the kind of the predictor, the names of the workers and a checksum.
Rows are found again by the name of their worker. A worker that is not in the file starts like a
newcomer in the job that saved it: with NARX, from its shared network.
"""

from __future__ import annotations

import hashlib
import io
import os
import uuid
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core.arrays import Ints
from evenstep.core.rows import Arrays, inner_arrays
from evenstep.errors import InvalidSetting, StateFileError
from evenstep.predictors.predictor import Predictor

FORMAT = 1


@dataclass(frozen=True, eq=False)
class _Saved:
    kind: str
    workers: list[str]
    state: Arrays


def save(path: str | Path, kind: str, predictor: Predictor, workers: Sequence[str]) -> None:
    """Write everything that a predictor has learned about its workers, all of it or nothing."""
    _check_workers(predictor, workers)
    arrays: Arrays = {
        "format": np.array(FORMAT),
        "kind": np.array(kind),
        "workers": np.array(workers, dtype=np.str_),
        **{f"state.{name}": array for name, array in predictor.state().items()},
    }
    content = io.BytesIO()
    np.savez(content, checksum=np.array(_checksum(arrays)), **arrays)  # type: ignore[arg-type]
    _replace(Path(path), content.getvalue())


def load(path: str | Path, kind: str, predictor: Predictor, workers: Sequence[str]) -> None:
    """Let a predictor take up what was saved; what it has learned itself is forgotten.

    Raises StateFileError, and leaves the predictor as it is, if the file is damaged, foreign, or
    of another kind.
    """
    _check_workers(predictor, workers)
    content = Path(path).read_bytes()
    try:
        saved = _parse(content)
        if saved.kind != kind:
            raise StateFileError(f"the kind of predictor must be {kind!r}, got {saved.kind!r}")
        heir = deepcopy(predictor)
        heir.remap(np.full(len(saved.workers), -1))
        heir.restore(saved.state)
    except StateFileError as error:
        raise StateFileError(f"{path}: {error}") from error
    heir.remap(_positions(workers, saved.workers))
    predictor.restore(heir.state())


def _parse(content: bytes) -> _Saved:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:
        # A file that was cut, changed, or never one of ours makes the readers of zip and npy
        # raise almost anything.
        raise StateFileError(
            f"not a file of saved predictors, or a damaged one: {error}"
        ) from error
    for name in ("format", "checksum", "kind", "workers"):
        if name not in arrays:
            raise StateFileError(f"a file of saved predictors must hold {name!r}")
    checksum = str(arrays.pop("checksum"))
    if str(arrays["format"]) != str(FORMAT):
        raise StateFileError(f"the format must be {FORMAT}, got {arrays['format']}")
    if checksum != _checksum(arrays):
        raise StateFileError("damaged: the content does not fit its checksum")
    names = [str(name) for name in arrays["workers"]]
    return _Saved(str(arrays["kind"]), names, inner_arrays(arrays, "state"))


def _checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _replace(path: Path, content: bytes) -> None:
    """Write a file in one go: a reader, or a crash, sees the old one or the new one."""
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with scratch.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _positions(workers: Sequence[str], saved: Sequence[str]) -> Ints:
    rows = {worker: row for row, worker in enumerate(saved)}
    return np.array([rows.get(worker, -1) for worker in workers], dtype=np.int64)


def _check_workers(predictor: Predictor, workers: Sequence[str]) -> None:
    if len(workers) != predictor.num_workers or len(set(workers)) != len(workers):
        raise InvalidSetting(
            f"workers must be {predictor.num_workers} different names, got {len(workers)}: "
            f"{', '.join(workers)}"
        )
