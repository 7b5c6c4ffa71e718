"""Vectors: the parameters of a model, or their gradients, as one array to be sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from evenstep.errors import InvalidSetting
from evenstep.tensorflow.summing import Gradient, dense

Vector = NDArray[Any]


class VectorLayout:
    """The position of each variable in a vector; all variables have one dtype."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = [
            variable if isinstance(variable, tf.Variable) else variable.value
            for variable in variables
        ]
        dtypes = sorted({variable.dtype.name for variable in self.variables})
        if len(dtypes) != 1:
            raise InvalidSetting(
                f"all variables must be of one dtype, to be sent as one vector, got {dtypes}"
            )
        self.dtype = np.dtype(dtypes[0])
        self._shapes = [tuple(variable.shape) for variable in self.variables]
        self._ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])

    @property
    def length(self) -> int:
        return int(self._ends[-1])

    def parameters(self) -> Vector:
        """Return the values of all variables."""
        return np.concatenate([variable.numpy().ravel() for variable in self.variables])

    def assign(self, vector: Vector) -> None:
        """Set all variables to the values in a vector."""
        for variable, value in zip(self.variables, self.split(vector), strict=True):
            variable.assign(value)

    def gradients(self, gradients: Sequence[Gradient], weight: float) -> Vector:
        """Return the weighted gradients; zeros where the loss does not depend on a variable."""
        parts = [
            np.zeros(int(np.prod(shape)), self.dtype) if gradient is None
            else dense(gradient).numpy().ravel()
            for gradient, shape in zip(gradients, self._shapes, strict=True)
        ]  # fmt: skip
        joined: Vector = np.concatenate(parts)
        # With weight 0, a gradient is left out even if it is NaN.
        return joined * self.dtype.type(weight) if weight else np.zeros_like(joined)

    def split(self, vector: Vector) -> list[tf.Tensor]:
        """Return the pieces of a vector, one per variable, in its shape."""
        pieces = np.split(vector, self._ends[:-1])
        return [
            tf.constant(piece.reshape(shape))
            for piece, shape in zip(pieces, self._shapes, strict=True)
        ]
