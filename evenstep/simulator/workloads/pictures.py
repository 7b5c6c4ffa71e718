"""Pictures: CIFAR-10 from a path, or digits in the same shape without one."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from evenstep.errors import DataFileError
from evenstep.simulator.workloads.digits import digits
from evenstep.simulator.workloads.safe_pickle import load_pickle

Bytes = NDArray[np.uint8]

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_BATCHES = ([f"data_batch_{i}" for i in range(1, 6)], ["test_batch"])
_SHAPE = (3, 32, 32)


class Pictures(NamedTuple):
    """Pictures of 3 x 32 x 32 bytes with labels, and the mean and deviation of each channel."""

    name: str
    train: TensorDataset
    test: TensorDataset
    mean: tuple[float, ...]
    """Of each channel over the training pictures, 0..255."""
    deviation: tuple[float, ...]


def load_pictures(path: str = "") -> Pictures:
    """Load CIFAR-10 from its folder of Python batches or an .npz file; without a path, digits.

    The .npz file has x_train, y_train, x_test and y_test, pictures as N x 32 x 32 x 3 bytes.
    """
    if not path:
        return upscaled_digits()
    file = Path(path)
    pairs = [_read_batches(file, names) for names in _BATCHES] if file.is_dir() else _read_npz(file)
    train, test = (_as_samples(file, *pair) for pair in pairs)
    return _describe("cifar10", train, test)


def upscaled_digits() -> Pictures:
    """Return scikit-learn's digits in the shape of CIFAR-10: each pixel 4 x 4 times, in grey."""
    parts = []
    for part in digits():
        images, labels = part.tensors
        # They are normalised; rescale them to bytes.
        low, high = images.min(), images.max()
        grey = ((images - low) / (high - low) * 255).round().to(torch.uint8)
        large = grey.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
        parts.append(TensorDataset(large.expand(-1, *_SHAPE).contiguous(), labels))
    return _describe("digits-as-pictures", *parts)


def _describe(name: str, train: TensorDataset, test: TensorDataset) -> Pictures:
    pixels = train.tensors[0].transpose(0, 1).flatten(1)
    # Computed from the counts of the 256 values: exact, and without a float copy of the pictures.
    counts = torch.stack([torch.bincount(channel, minlength=256) for channel in pixels]).double()
    values = torch.arange(256, dtype=torch.float64)
    total = counts.sum(dim=1)
    mean = counts @ values / total
    deviation = (counts @ values.square() / total - mean.square()).clamp(min=1e-12).sqrt()
    return Pictures(name, train, test, tuple(mean.tolist()), tuple(deviation.tolist()))


def _read_batches(folder: Path, names: Sequence[str]) -> tuple[Bytes, Any]:
    batches = [load_pickle(folder / name) for name in names]
    for name, batch in zip(names, batches, strict=True):
        if not isinstance(batch, dict) or not {b"data", b"labels"} <= batch.keys():
            got = ", ".join(map(str, batch)) if isinstance(batch, dict) else type(batch).__name__
            raise DataFileError(f"{folder / name}: must have data and labels, got {got}")
        if not isinstance(batch[b"data"], np.ndarray) or batch[b"data"].shape[1:] != (3072,):
            shape = getattr(batch[b"data"], "shape", type(batch[b"data"]).__name__)
            raise DataFileError(f"{folder / name}: data must be N x 3072 bytes, got {shape}")
    pictures = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, *_SHAPE)
    labels = np.concatenate([np.asarray(batch[b"labels"]) for batch in batches])
    return pictures.transpose(0, 2, 3, 1), labels


def _read_npz(file: Path) -> list[tuple[Bytes, Any]]:
    try:
        with np.load(file, allow_pickle=False) as archive:
            missing = [name for name in _ARRAYS if name not in archive]
            if missing:
                rule = f"must have {', '.join(_ARRAYS)}"
                raise DataFileError(f"{file}: {rule}, got none of {', '.join(missing)}")
            return [(archive[f"x_{part}"], archive[f"y_{part}"]) for part in ("train", "test")]
    except OSError as error:
        raise DataFileError(f"{file}: cannot be read: {error.strerror or error}") from error
    except DataFileError:
        raise
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataFileError(f"{file}: must be an .npz file of arrays: {error}") from error


def _as_samples(file: Path, pictures: Any, labels: Any) -> TensorDataset:
    if pictures.dtype != np.uint8 or pictures.shape[1:] != (32, 32, 3) or len(pictures) == 0:
        got = f"{pictures.dtype} of shape {pictures.shape}"
        raise DataFileError(f"{file}: pictures must be bytes of shape (N, 32, 32, 3), got {got}")
    labels = np.asarray(labels)
    if labels.shape != (len(pictures),) or not np.issubdtype(labels.dtype, np.integer):
        rule = f"labels must be {len(pictures)} whole numbers"
        raise DataFileError(f"{file}: {rule}, got {labels.dtype} of shape {labels.shape}")
    if labels.min() < 0 or labels.max() > 9:
        got = f"{labels.min()} to {labels.max()}"
        raise DataFileError(f"{file}: labels must be 0 to 9, got {got}")
    return TensorDataset(
        torch.from_numpy(np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))),
        torch.from_numpy(labels.astype(np.int64)),
    )
