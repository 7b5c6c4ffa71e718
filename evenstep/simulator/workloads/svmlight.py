"""Svmlight files: a label and ``index:value`` pairs per line, the format of LIBSVM's data sets."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from evenstep.core import Floats, Ints
from evenstep.errors import DataFileError


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Samples stored as their nonzero values, row after row."""

    starts: Ints
    """The start of each row, and the end of the last one."""
    features: Ints
    """The feature of each value."""
    values: Floats

    def __len__(self) -> int:
        return len(self.starts) - 1

    def take(self, rows: Ints) -> SparseRows:
        """Return some of the rows, in the given order.

        >>> rows = SparseRows(np.array([0, 2, 3]), np.array([4, 7, 5]), np.array([0.5, 1.0, 2.0]))
        >>> rows.take(np.array([1, 0])).features
        array([5, 4, 7])
        """
        lengths = np.diff(self.starts)[rows]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        entries = np.arange(starts[-1]) + np.repeat(self.starts[:-1][rows] - starts[:-1], lengths)
        return SparseRows(starts, self.features[entries], self.values[entries])

    def renumber(self, known: Ints) -> SparseRows:
        """Number features by their position in `known`, and drop all others.

        >>> rows = SparseRows(np.array([0, 2, 3]), np.array([4, 7, 5]), np.array([0.5, 1.0, 2.0]))
        >>> rows.renumber(known=np.array([5, 7])).features
        array([1, 0])
        """
        position = np.searchsorted(known, self.features)
        kept = known[np.minimum(position, len(known) - 1)] == self.features
        before = np.concatenate([[0], np.cumsum(kept)])
        return SparseRows(before[self.starts], position[kept], self.values[kept])


def read_svmlight(path: Path, most_rows: int | None = None) -> tuple[SparseRows, Floats]:
    """Read the rows and labels of a file, gzipped or not; at most `most_rows` of them.

    Raises DataFileError with the line of the first mistake:
    ``a9a:17: an entry must be index:value, got '5:x'``.
    """
    labels: list[float] = []
    starts = [0]
    features: list[int] = []
    values: list[float] = []
    for number, line in islice(_lines(path), most_rows):
        label, *entries = line.split()
        labels.append(_parse_label(label, path, number))
        last = -1
        for entry in entries:
            feature, value = _parse_entry(entry, path, number)
            if feature <= last:
                problem = f"indices must rise within a line, got {feature} after {last}"
                raise DataFileError(f"{path}:{number}: {problem}")
            features.append(feature)
            values.append(value)
            last = feature
        starts.append(len(features))
    if not labels:
        raise DataFileError(f"{path}: a file of samples must have at least one, got none")
    rows = SparseRows(np.array(starts), np.array(features, dtype=np.int64), np.array(values))
    return rows, np.array(labels)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that hold a sample, with their numbers and without comments."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                sample = line.partition("#")[0].strip()
                if sample:
                    yield number, sample
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataFileError(f"{path}: must be text, or text that gzip packed: {error}") from error
    except OSError as error:
        raise DataFileError(f"{path}: cannot be read: {error.strerror}") from error


def _parse_label(text: str, path: Path, number: int) -> float:
    try:
        label = float(text)
    except ValueError:
        label = math.nan
    if not math.isfinite(label):
        raise DataFileError(f"{path}:{number}: a label must be a finite number, got {text!r}")
    return label


def _parse_entry(text: str, path: Path, number: int) -> tuple[int, float]:
    index, colon, value = text.partition(":")
    try:
        entry = int(index), float(value)
    except ValueError:
        entry = -1, math.nan
    if not colon or entry[0] < 0 or not math.isfinite(entry[1]):
        rule = "an entry must be index:value, an index >= 0 and a finite value"
        raise DataFileError(f"{path}:{number}: {rule}, got {text!r}")
    return entry
