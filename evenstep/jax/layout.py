"""Layout: a tree of arrays as one row of numbers, so that one collective sums all of it."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evenstep.errors import InvalidSetting


class Layout:
    """Knows where in a row each array of a tree is; `shapes` is a tree of what has them.

    The row is float32, and float64 where an array is: what is shorter is summed in full.
    """

    def __init__(self, shapes: Any) -> None:
        leaves, self._tree = jax.tree.flatten(shapes)
        self._shapes = [leaf.shape for leaf in leaves]
        self._dtypes = [leaf.dtype for leaf in leaves]
        for dtype in self._dtypes:
            if not jnp.issubdtype(dtype, jnp.floating):
                raise InvalidSetting(f"parameters must be of real numbers, got dtype {dtype}")
        self._ends = np.cumsum([math.prod(shape) for shape in self._shapes])
        self._carrier = jnp.result_type(jnp.float32, *self._dtypes)

    @property
    def length(self) -> int:
        return int(self._ends[-1])

    def row(self, tree: Any) -> Any:
        """Return the tree in a row, of the shape (1, length)."""
        leaves = [leaf.reshape(1, -1).astype(self._carrier) for leaf in jax.tree.leaves(tree)]
        return jnp.concatenate(leaves, axis=1)

    def tree(self, row: Any) -> Any:
        """Return the tree that is in a row, of the shape (length,)."""
        flat = jnp.split(row[: self.length], self._ends[:-1])
        parts = zip(flat, self._shapes, self._dtypes, strict=True)
        leaves = [part.reshape(shape).astype(dtype) for part, shape, dtype in parts]
        return jax.tree.unflatten(self._tree, leaves)
