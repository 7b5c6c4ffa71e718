"""Tensors as bytes to be sent: 64-bit floats, one tensor after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from evenstep.errors import Refused

_FLOAT = np.dtype("<f8")


def pack(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return tensors as bytes.

    >>> len(pack([torch.zeros(2, 3, dtype=torch.float64), torch.ones(1, dtype=torch.float64)]))
    56
    """
    return np.concatenate([t.detach().numpy().ravel() for t in tensors]).astype(_FLOAT).tobytes()


def unpack(octets: bytes, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors of these shapes from bytes.

    >>> unpack(pack([torch.eye(2, dtype=torch.float64)]), [torch.empty(2, 2)])
    [tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)]
    """
    sizes = [tensor.numel() for tensor in like]
    needed = sum(sizes) * _FLOAT.itemsize
    if len(octets) != needed:
        raise Refused("INVALID", f"tensors must have {needed} bytes, got {len(octets)}")
    flat = torch.from_numpy(np.frombuffer(octets, _FLOAT).astype(np.float64))
    parts = flat.split(sizes)
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
