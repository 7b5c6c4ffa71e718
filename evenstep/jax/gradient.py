"""The joined gradient: that of `jax.value_and_grad` on the batches of all workers together.

Each worker's part is computed by one compiled program per bucket, and summed over all workers in
one collective, which carries the reports too.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evenstep.errors import InvalidSetting
from evenstep.jax.buckets import pad, padded_size
from evenstep.jax.collective import ProcessSum
from evenstep.jax.loader import PendingBatch
from evenstep.jax.loss_weights import LossWeights
from evenstep.training.loop import Loop


class JoinedGradient:
    """Computes the gradient of the joined batch; all workers call it once for each batch."""

    def __init__(
        self,
        weights: LossWeights,
        loop: Loop,
        pending: PendingBatch,
        summing: ProcessSum,
        bucket: int,
    ) -> None:
        self._weights = weights
        self._loop = loop
        self._pending = pending
        self._sum = summing
        self._bucket = bucket
        self._layout: TreeLayout | None = None
        self._programs: dict[Any, Any] = {}
        self._part = jax.jit(self._row_of_part, static_argnames="size")
        self._split = jax.jit(self._split_row)

    @property
    def num_programs(self) -> int:
        """The number of batch shapes compiled."""
        return len(self._programs)

    def __call__(self, params: Any, *batch: Any, **others: Any) -> tuple[Any, Any]:
        """Return the loss and the gradient of all workers' batches together.

        Arrays of `batch` have an entry per sample; `others` are passed to the loss function
        unchanged.
        """
        loop, dealt = self._loop, self._pending.take()
        size = padded_size(len(dealt.samples), self._bucket)
        padded = pad(batch, len(dealt.samples), size)
        numbers = np.int32(loop.samples), np.float32(dealt.sizes.sum())
        program = self._program(params, padded, others, size, numbers)
        part = program(params, padded, others, *numbers)
        part.block_until_ready()
        loop.finish(_memory_in_use(self._sum.device))
        summed = self._sum(part, loop.slots().reshape(1, -1))
        result: tuple[Any, Any]
        result, rows = self._split(summed)
        loop.take(np.asarray(rows))
        return result

    def _program(self, params: Any, batch: Any, others: Any, size: int, numbers: Any) -> Any:
        """Return the program for these shapes; no time is reported for a new one."""
        key = _shapes(params), _shapes((batch, others))
        if key not in self._programs:
            with self._loop.away():
                if self._layout is None:
                    self._begin(params, batch, others, size, numbers)
                elif not any(key[0] == known for known, _ in self._programs):
                    raise InvalidSetting(
                        "parameters must keep their shapes from call to call, with another "
                        f"balancer.value_and_grad for others, got {jax.tree.structure(params)}"
                    )
                lowered = self._part.lower(params, batch, others, *numbers, size=size)
                self._programs[key] = lowered.compile()
            # The first run of a program takes many times as long as the others.
            self._loop.timer.spoil()
        return self._programs[key]

    def _begin(self, params: Any, batch: Any, others: Any, size: int, numbers: Any) -> None:
        """Derive the layout from the arguments of the first call, and compare the parameters."""

        def part(params: Any, batch: Any, others: Any, samples: Any, total: Any) -> Any:
            return self._weights.part(params, batch, others, size, samples, total)

        self._layout = TreeLayout(jax.eval_shape(part, params, batch, others, *numbers))
        self._loop.agree({"checksum of the parameters": _checksum(params)})

    def _row_of_part(
        self, params: Any, batch: Any, others: Any, samples: Any, total: Any, *, size: int
    ) -> Any:
        assert self._layout is not None
        row = self._layout.row(self._weights.part(params, batch, others, size, samples, total))
        # Without samples, a gradient is left out even if it is NaN.
        return jnp.where(samples > 0, row, 0)

    def _split_row(self, row: Any) -> tuple[Any, Any]:
        """Return the result, and the rows of all workers' reports."""
        assert self._layout is not None
        return self._weights.result(self._layout.tree(row)), row[self._layout.length :]


def _shapes(tree: Any) -> Any:
    """Return the structure, shapes and types that a program depends on."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *[(np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves]


def _checksum(params: Any) -> int:
    """Return a checksum of the parameters."""
    checksum = 0
    for leaf in jax.tree.leaves(params):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            raise InvalidSetting(
                "parameters must be arrays of this process, the same on all workers, got one that "
                f"is spread over processes: {leaf.sharding}"
            )
        checksum = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), checksum)
    return checksum


def _memory_in_use(device: Any) -> float | None:
    """Return the peak share of a device's memory in use; None where unknown."""
    stats = device.memory_stats() or {}
    used, limit = stats.get("peak_bytes_in_use"), stats.get("bytes_limit")
    return used / limit if used is not None and limit else None


class TreeLayout:
    """The position of each array of a tree in a row; `shapes` is a tree of shaped leaves.

    The row is float32, or float64 if an array is: shorter floats are summed in float32.
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
        """Return a tree as a row of the shape (1, length)."""
        leaves = [leaf.reshape(1, -1).astype(self._carrier) for leaf in jax.tree.leaves(tree)]
        return jnp.concatenate(leaves, axis=1)

    def tree(self, row: Any) -> Any:
        """Return the tree of a row of the shape (length,)."""
        flat = jnp.split(row[: self.length], self._ends[:-1])
        parts = zip(flat, self._shapes, self._dtypes, strict=True)
        leaves = [part.reshape(shape).astype(dtype) for part, shape, dtype in parts]
        return jax.tree.unflatten(self._tree, leaves)
