"""Rows: samples as they are on disk and on their way, each with its number and its checksum."""

from __future__ import annotations

import ast
import zlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import Bools, Ints
from evenstep.errors import InvalidSetting

Rows = NDArray[Any]
"""A structured array: the number of the sample, a CRC-32 over number and data, the data."""

_HEAD = 12
"""Bytes before the data of a row: 8 of the number, 4 of the checksum."""


@dataclass(frozen=True)
class Layout:
    """The named fields of a sample, and the form in which it is returned.

    >>> layout = Layout("tuple", np.dtype([("0", "<f4", (8, 8)), ("1", "<i8")]))
    >>> layout.text
    "tuple [('0', '<f4', (8, 8)), ('1', '<i8')]"
    >>> Layout.parse(layout.text) == layout
    True
    """

    kind: str
    """The form of a sample: `single` array or number, `tuple`, or `dict`."""
    data: np.dtype[Any]
    """A structured type with a field per array of the sample."""

    def __post_init__(self) -> None:
        if self.data.names is None or self.data.hasobject:
            raise InvalidSetting(f"a sample must be arrays of numbers, got {self.data}")
        if self.kind not in ("single", "tuple", "dict"):
            raise InvalidSetting(f"a layout must be single, tuple or dict, got {self.kind!r}")

    @property
    def text(self) -> str:
        """The layout in a line; equal layouts have equal texts."""
        return f"{self.kind} {np.lib.format.dtype_to_descr(self.data)}"

    @classmethod
    @lru_cache
    def parse(cls, text: str) -> Layout:
        """Read what `text` wrote."""
        kind, _, descr = text.partition(" ")
        try:
            return cls(kind, np.lib.format.descr_to_dtype(ast.literal_eval(descr)))
        except Exception as error:
            # Python and numpy raise almost any error for a text that describes no type.
            raise InvalidSetting(f"a layout must be a list of fields, got {text!r}") from error

    @cached_property
    def row(self) -> np.dtype[Any]:
        """The type of a row."""
        return np.dtype([("sample", "<i8"), ("crc", "<u4"), ("data", self.data)])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields."""
        assert self.data.names is not None
        return self.data.names

    def unpack(self, data: NDArray[Any]) -> Any:
        """Return data, of one sample or of many, as users know it."""
        if self.kind == "single":
            return data[self.names[0]]
        if self.kind == "dict":
            return {name: data[name] for name in self.names}
        return tuple(data[name] for name in self.names)


def seal(layout: Layout, samples: Ints, data: NDArray[Any]) -> Rows:
    """Return the rows of samples, with their checksums."""
    rows = np.zeros(len(samples), dtype=layout.row)
    rows["sample"] = samples
    rows["data"] = data
    rows["crc"] = _checksums(rows)
    return rows


def intact(rows: Rows) -> Bools:
    """Return which rows fit their checksums.

    >>> rows = seal(Layout("single", np.dtype([("0", "<f8")])), np.arange(3), np.ones(3))
    >>> rows["data"]["0"][1] = 2
    >>> intact(rows)
    array([ True, False,  True])
    """
    fits: Bools = rows["crc"] == _checksums(rows)
    return fits


def octets_of(rows: Rows) -> memoryview:
    """Return the bytes of rows, which are not copied if they lie side by side.

    >>> octets_of(np.array([1, 2], dtype="<u2")).tolist()
    [1, 0, 2, 0]
    """
    return np.ascontiguousarray(rows).view(np.uint8).data


def _checksums(rows: Rows) -> NDArray[np.uint32]:
    width = rows.dtype.itemsize
    octets = octets_of(rows)
    starts = range(0, len(rows) * width, width)
    return np.fromiter(
        (zlib.crc32(octets[s + _HEAD : s + width], zlib.crc32(octets[s : s + 8])) for s in starts),
        dtype=np.uint32,
        count=len(rows),
    )
