"""Sources: what partitions are made from, whether arrays or a data set as PyTorch has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evenstep.core.arrays import Ints
from evenstep.errors import InvalidSetting
from evenstep.partition_store.rows import Layout


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
