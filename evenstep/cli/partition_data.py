"""The data that `evenstep partition create` deals: arrays from files, or the digits."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.errors import InvalidSetting

Arrays = dict[str, NDArray[Any]]


def arrays_of(args: argparse.Namespace) -> Arrays:
    """Return the arrays that the arguments name."""
    if args.digits:
        return _digits()
    if args.npz is not None:
        return _load(args.npz, archive=True)
    arrays: Arrays = {}
    for path in args.npy:
        if path.stem in arrays:
            raise InvalidSetting(f"files must have different names, got {path.stem!r} twice")
        arrays |= _load(path, archive=False)
    return arrays


def label_of(args: argparse.Namespace, arrays: Arrays) -> str | None:
    """Return the array with the classes: the one that is named, or the last of several."""
    if args.label is not None:
        if args.label not in arrays:
            raise InvalidSetting(f"label must be one of {', '.join(arrays)}, got {args.label!r}")
        return str(args.label)
    last = list(arrays)[-1]
    if len(arrays) == 1 or args.npz is not None:
        return None
    return last if arrays[last].ndim == 1 and arrays[last].dtype.kind in "biu" else None


def _digits() -> Arrays:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return {"x": digits.images.astype(np.float32), "y": digits.target.astype(np.int64)}


def _load(path: Path, archive: bool) -> Arrays:
    kind = "an .npz archive" if archive else "an .npy file"
    try:
        loaded = np.load(path, allow_pickle=False)
        if archive != isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it is the other kind")
        return dict(loaded) if archive else {path.stem: loaded}
    except OSError:
        raise
    except Exception as error:
        # A file that was never one of these makes the readers of zip and npy raise almost anything.
        raise InvalidSetting(f"{path} must be {kind} of numbers: {error}") from error
