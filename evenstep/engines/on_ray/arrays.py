"""Tensors on their way between processes: as arrays, which Ray moves without pickling them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Arrays = list[npt.NDArray[Any]]


def pack(tensors: Sequence[torch.Tensor]) -> Arrays:
    return [tensor.detach().numpy() for tensor in tensors]


def unpack(arrays: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
    """Return tensors of their own: arrays that Ray hands out cannot be written to."""
    return [torch.from_numpy(np.array(array)) for array in arrays]
