"""Unpickling what comes from elsewhere: arrays, texts, numbers and containers, and nothing else."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import DataFileError


def _encode(text: str, encoding: str) -> bytes:
    """Make bytes as Python 3 writes them for Python 2, and in no other way."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


_EMPTY, _ONE = np.zeros(0), np.float64(1)
# What numpy puts arrays together with has moved between its versions, and a file may be of any.
_MAKERS = {
    ("multiarray", "_reconstruct"): _EMPTY.__reduce__()[0],
    ("multiarray", "scalar"): _ONE.__reduce__()[0],
    ("numeric", "_frombuffer"): _EMPTY.__reduce_ex__(5)[0],
}
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
    **{
        (f"numpy.{core}.{module}", name): maker
        for core in ("core", "_core")
        for (module, name), maker in _MAKERS.items()
    },
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ALLOWED[module, name]


def load_pickle(path: Path) -> Any:
    """Load a pickle of Python 2 or 3 without letting it run anything.

    Texts of Python 2 come back as bytes. Raises DataFileError for a pickle of anything but arrays
    and plain containers.
    """
    try:
        with path.open("rb") as file:
            return _Unpickler(file, encoding="bytes").load()
    except OSError as error:
        raise DataFileError(f"{path}: cannot be read: {error.strerror}") from error
    # A damaged pickle can make the parts that it is put together from raise anything.
    except Exception as error:
        raise DataFileError(
            f"{path}: must be a pickle of arrays, texts, numbers, lists and dicts: {error}"
        ) from error
