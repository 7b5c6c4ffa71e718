"""Predictors in files: what one run has learned, for the next one or for another job.

A file is an .npz archive without pickles: the predictor's state, array by array, and beside it
the version of this format, the kind of the predictor, the names of the workers and a checksum.
Rows are found again by the name of their worker. A worker that is not in the file starts like a
newcomer in the job that saved it: with NARX, from its shared network.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenstep.core.archive import parse_archive, write_archive
from evenstep.core.arrays import Ints
from evenstep.core.predictor import Predictor
from evenstep.core.rows import Arrays, inner_arrays
from evenstep.errors import InvalidSetting, StateFileError

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
    write_archive(Path(path), arrays)


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
    arrays = parse_archive(content, "saved predictors", FORMAT, ("kind", "workers"))
    names = [str(name) for name in arrays["workers"]]
    return _Saved(str(arrays["kind"]), names, inner_arrays(arrays, "state"))


def _positions(workers: Sequence[str], saved: Sequence[str]) -> Ints:
    rows = {worker: row for row, worker in enumerate(saved)}
    return np.array([rows.get(worker, -1) for worker in workers], dtype=np.int64)


def _check_workers(predictor: Predictor, workers: Sequence[str]) -> None:
    if len(workers) != predictor.num_workers or len(set(workers)) != len(workers):
        raise InvalidSetting(
            f"workers must be {predictor.num_workers} different names, got {len(workers)}: "
            f"{', '.join(workers)}"
        )
