"""Sources of samples: arrays from which batches are taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np

from evenstep.core import Ints
from evenstep.errors import InvalidSetting

Arrays = Any
"""An array, a list of them, or a dict of them by name, as `mx.io.NDArrayIter` takes them."""


class ArraySource:
    """Arrays of samples, from which batches are taken by index."""

    def __init__(self, data: Arrays, label: Arrays, data_name: str, label_name: str) -> None:
        self._data = _named(data, data_name)
        self._label = {} if label is None else _named(label, label_name)
        lengths = {name: len(array) for name, array in (self._data | self._label).items()}
        if len(set(lengths.values())) != 1:
            raise InvalidSetting(f"all arrays must have as many samples, got {lengths}")
        self.num_samples = next(iter(lengths.values()))

    def describe(self, batch_size: int) -> tuple[list[Any], list[Any]]:
        """Return the shapes of data and labels of a batch of this size."""
        return _shapes(self._data, batch_size), _shapes(self._label, batch_size)

    def batch(self, samples: Ints) -> Any:
        """Return these samples, as a DataBatch."""
        data, label = self.describe(len(samples))
        return mx.io.DataBatch(
            data=[mx.nd.array(array[samples], dtype=array.dtype) for array in self._data.values()],
            label=[
                mx.nd.array(array[samples], dtype=array.dtype) for array in self._label.values()
            ],
            pad=0, index=samples, provide_data=data, provide_label=label,
        )  # fmt: skip


def _named(arrays: Arrays, name: str) -> dict[str, Any]:
    if isinstance(arrays, Mapping):
        return {key: _as_numpy(array) for key, array in arrays.items()}
    if isinstance(arrays, Sequence):
        names = [name] if len(arrays) == 1 else [f"_{i}_{name}" for i in range(len(arrays))]
        return {key: _as_numpy(array) for key, array in zip(names, arrays, strict=True)}
    return {name: _as_numpy(arrays)}


def _as_numpy(array: Any) -> Any:
    return array.asnumpy() if isinstance(array, mx.nd.NDArray) else np.asarray(array)


def _shapes(arrays: Mapping[str, Any], batch_size: int) -> list[Any]:
    return [
        mx.io.DataDesc(name, (batch_size, *array.shape[1:]), array.dtype)
        for name, array in arrays.items()
    ]
