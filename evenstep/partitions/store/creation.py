"""Creating partitions: the samples of a data set, arrays or map-style, in a folder per worker."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evenstep.core import Ints
from evenstep.core.archive import sync_folder
from evenstep.errors import InvalidSetting, PartitionError
from evenstep.partitions.handover.protocol import check_name
from evenstep.partitions.rules.partitioning import check_dealt
from evenstep.partitions.store.blocks import BLOCKS, block_path, write_rows
from evenstep.partitions.store.index import FILE, DataSet, Index, write_index
from evenstep.partitions.store.rows import Layout, Rows, seal

_SLAB = 1024
"""Samples that are in memory at the same time."""

_BLOCK = "block-00000000"


def create_partitions(
    folders: Sequence[str | Path],
    data: Any,
    dealt: Sequence[Ints],
    label: str | None = None,
    quota: int | None = None,
) -> None:
    """Make a partition in each folder, named after it, with the samples that it is dealt.

    `data` is an array, a tuple or dict of arrays with a row per sample, or a data set with a length
    and a sample at each position. `label` names the field that samples are stratified by (fields of
    tuples are called "0", "1" and so on), `quota` is the number of bytes for rows in each folder.
    """
    paths = [Path(folder) for folder in folders]
    source = source_of(data)
    check_dealt(dealt, len(source))
    _check(paths, source, dealt, label, quota)
    checksums = np.zeros(len(source), dtype="<u4")
    for path, samples in zip(paths, dealt, strict=True):
        (path / BLOCKS).mkdir(parents=True, exist_ok=True)
        slabs = _sealed(source, np.sort(samples), checksums)
        write_rows(block_path(path, _BLOCK), source.layout.row, len(samples), slabs)
        sync_folder(path)
    digest = hashlib.sha256(checksums.tobytes()).hexdigest()
    dataset = DataSet(digest, len(source), len(paths), source.layout.text, label)
    for path, samples in zip(paths, dealt, strict=True):
        none: Ints = np.zeros(0, dtype=np.int64)
        index = Index(path.resolve().name, dataset, none, none, none, (), quota=quota)
        write_index(path, index.joined_by(_BLOCK, np.sort(samples)))


def _sealed(source: Source, samples: Ints, checksums: NDArray[Any]) -> Iterator[Rows]:
    for start in range(0, len(samples), _SLAB):
        some = samples[start : start + _SLAB]
        rows = seal(source.layout, some, source.take(some))
        checksums[some] = rows["crc"]
        yield rows


def _check(
    paths: Sequence[Path],
    source: Source,
    dealt: Sequence[Ints],
    label: str | None,
    quota: int | None,
) -> None:
    names = [path.resolve().name for path in paths]
    if len(paths) != len(dealt) or len(set(names)) < len(names):
        raise InvalidSetting(f"folders must be {len(dealt)} of different names, got {names}")
    for name in names:
        check_name("partition", name)
    if label is not None:
        if label not in source.layout.names:
            known = ", ".join(map(repr, source.layout.names))
            raise InvalidSetting(f"the label must be one of the fields {known}, got {label!r}")
        field = source.layout.data[label]
        if field.shape or field.kind not in "biu":
            raise InvalidSetting(f"the label must be a whole number per sample, got {field}")
    for path, samples in zip(paths, dealt, strict=True):
        if (path / FILE).exists():
            raise PartitionError(f"{path / FILE}: there is a partition already")
        num_bytes = len(samples) * source.layout.row.itemsize
        if quota is not None and num_bytes > quota:
            raise InvalidSetting(f"the quota must hold {num_bytes} bytes in {path}, got {quota}")


class MapStyle(Protocol):
    """A data set with a length, and a sample at each position."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> Any: ...


class Source(Protocol):
    """Samples that can be read by position."""

    @property
    def layout(self) -> Layout: ...

    def __len__(self) -> int: ...

    def take(self, positions: Ints) -> NDArray[Any]:
        """Return the data of samples."""
        ...


def source_of(data: Any) -> Source:
    """Return the source of an array, of a tuple or dict of arrays, or of a data set.

    >>> source = source_of({"x": np.zeros((4, 2)), "y": np.arange(4)})
    >>> source.layout.text, source.take(np.array([3]))["y"]
    ("dict [('x', '<f8', (2,)), ('y', '<i8')]", array([3]))
    """
    if isinstance(data, np.ndarray):
        return _Arrays("single", {"0": data})
    if isinstance(data, Mapping):
        return _Arrays("dict", {str(name): np.asarray(array) for name, array in data.items()})
    if isinstance(data, tuple):
        return _Arrays("tuple", {str(i): np.asarray(array) for i, array in enumerate(data)})
    return _DataSet(data)


class _Arrays:
    def __init__(self, kind: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        lengths = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
        if not lengths or len(set(lengths.values())) > 1 or 0 in lengths.values():
            raise InvalidSetting(f"arrays must have a row per sample, got lengths {lengths}")
        self._arrays = arrays
        self._length = next(iter(lengths.values()))
        self.layout = _layout(kind, {name: array[0] for name, array in arrays.items()})

    def __len__(self) -> int:
        return self._length

    def take(self, positions: Ints) -> NDArray[Any]:
        data = np.zeros(len(positions), dtype=self.layout.data)
        for name, array in self._arrays.items():
            data[name] = array[positions]
        return data


class _DataSet:
    def __init__(self, dataset: MapStyle) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise InvalidSetting(f"a data set must have a length and samples, got {dataset!r}")
        if len(dataset) == 0:
            raise InvalidSetting("a data set must have samples, got none")
        self._dataset = dataset
        self.layout = _layout(*_fields(dataset[0], 0))

    def __len__(self) -> int:
        return len(self._dataset)

    def take(self, positions: Ints) -> NDArray[Any]:
        data = np.zeros(len(positions), dtype=self.layout.data)
        for i, position in enumerate(positions.tolist()):
            kind, fields = _fields(self._dataset[position], position)
            layout = _layout(kind, fields)
            if layout != self.layout:
                raise InvalidSetting(
                    f"all samples must be {self.layout.text}, got {layout.text} at {position}"
                )
            for name, value in fields.items():
                data[name][i] = value
        return data


def _fields(sample: Any, position: int) -> tuple[str, dict[str, NDArray[Any]]]:
    """Return a sample as arrays; those of PyTorch become numpy's without loading it."""
    if isinstance(sample, Mapping):
        kind, parts = "dict", {str(name): value for name, value in sample.items()}
    elif isinstance(sample, (tuple, list)):
        kind, parts = "tuple", {str(i): value for i, value in enumerate(sample)}
    else:
        kind, parts = "single", {"0": sample}
    try:
        return kind, {name: np.asarray(value) for name, value in parts.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidSetting(f"sample {position} must be arrays or numbers: {error}") from error


def _layout(kind: str, fields: Mapping[str, NDArray[Any]]) -> Layout:
    for name, value in fields.items():
        if np.asarray(value).dtype.kind not in "biufc":
            raise InvalidSetting(
                f"field {name!r} of a sample must be of numbers, got {np.asarray(value).dtype}"
            )
    types = [(name, value.dtype.newbyteorder("<"), value.shape) for name, value in fields.items()]
    return Layout(kind, np.dtype(types))
