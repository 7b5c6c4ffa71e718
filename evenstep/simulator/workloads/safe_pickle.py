"""Loads untrusted pickles: arrays, texts, numbers and containers, and nothing else."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import DataFileError


def _encode(text: str, encoding: str) -> bytes:
    """Return bytes written in the form that Python 3 uses for Python 2, and no other."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


class _DType:
    """A plain element type, of which a pickle may set only the byte order.

    Numpy's own dtype accepts any state from a pickle, and would treat bytes as object pointers.
    """

    def __init__(self, code: str | bytes, align: bool = False, copy: bool = True) -> None:
        text = code.decode("latin1") if isinstance(code, bytes) else code
        if not re.fullmatch(r"[biufSU]\d+", text):
            raise pickle.UnpicklingError(f"it asks for elements of type {text!r}")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", b"<", ">", b">"):
            self.dtype = self.dtype.newbyteorder("<" if state[1] in ("<", b"<") else ">")


class _Array(np.ndarray[Any, Any]):
    """An array that can only be filled with bytes."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        version, shape, kind, is_fortran, content = state
        if not isinstance(kind, _DType) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it has an array of something else than bytes")
        super().__setstate__((version, shape, kind.dtype, is_fortran, content))


def _reconstruct(kind: object, shape: object, code: object) -> _Array:
    """Make an empty array, which `__setstate__` fills: the start of numpy's pickles."""
    return _Array(0, np.uint8)


def _scalar(kind: _DType, content: bytes) -> Any:
    return np.frombuffer(content, kind.dtype)[0]


def _frombuffer(content: Any, kind: _DType, shape: Any, order: Any) -> Any:
    return np.frombuffer(content, kind.dtype).reshape(shape, order=order)


# Numpy's constructors have moved between versions, and a file may come from any of them.
_MAKERS = {
    ("multiarray", "_reconstruct"): _reconstruct,
    ("multiarray", "scalar"): _scalar,
    ("numeric", "_frombuffer"): _frombuffer,
}
_ALLOWED: dict[tuple[str, str], Any] = {
    # Only an argument of `_reconstruct`: a text cannot be called.
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): _DType,
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
    """Load a pickle of Python 2 or 3 without running any code from it.

    Python 2 texts are returned as bytes. Raises DataFileError for a pickle of anything but arrays
    and plain containers.
    """
    try:
        with path.open("rb") as file:
            return _Unpickler(file, encoding="bytes").load()
    except OSError as error:
        raise DataFileError(f"{path}: cannot be read: {error.strerror}") from error
    # A damaged pickle can make the allowed constructors raise any exception.
    except Exception as error:
        raise DataFileError(
            f"{path}: must be a pickle of arrays, texts, numbers, lists and dicts: {error}"
        ) from error
