"""Exchanges small values between the processes of jax.distributed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from evenstep.core import Floats
from evenstep.errors import InvalidSetting


class ProcessCollective:
    """Exchanges rows of numbers between the processes."""

    def __init__(self, summing: ProcessSum) -> None:
        self._sum = summing
        self.worker = summing.worker
        self.num_workers = summing.num_workers

    def everybody(self, row: Floats) -> Floats:
        """Return the rows of all workers, as a sum of tables that are zero but for one row.

        They are sent as integers of the same bits, as JAX has no float64 by default, and in few
        lengths, as JAX compiles a program for each.
        """
        words = np.ascontiguousarray(row, dtype=np.float64).view(np.int32)
        width = 1 << max(len(words) - 1, 1).bit_length()
        rows = np.zeros((self.num_workers, width), dtype=np.int32)
        rows[self.worker, : len(words)] = words
        summed = np.asarray(self._sum(rows.reshape(1, -1))).reshape(self.num_workers, width)
        received: Floats = np.ascontiguousarray(summed[:, : len(words)]).view(np.float64)
        return received


class ProcessSum:
    """Sums rows over the workers, each a process with one device."""

    def __init__(self) -> None:
        if jax.local_device_count() != 1:
            raise InvalidSetting(
                f"a worker must be a process with one device, got {jax.local_device_count()}: "
                "start a process per device, with jax.distributed.initialize(local_device_ids=...)"
            )
        self.worker: int = jax.process_index()
        self.num_workers: int = jax.process_count()
        self.device = jax.local_devices()[0]
        by_worker = sorted(jax.devices(), key=lambda device: device.process_index)
        mesh = Mesh(np.array(by_worker), ("workers",))
        self._of_workers = NamedSharding(mesh, PartitionSpec("workers"))
        self._sum = jax.jit(_joined_sum, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def __call__(self, *parts: Any) -> Any:
        """Return the sum over all workers of these rows, end to end, as an array of this process.

        Each part has the shape (1, length), the same on all workers. Does not wait: the array is
        ready once all workers have called.
        """
        summed = self._sum(*[self._row(part) for part in parts])
        return summed.addressable_data(0)

    def _row(self, part: Any) -> Any:
        """Return an array of the rows of all workers, of which this process holds its own."""
        shape = (self.num_workers, part.shape[1])
        own = jax.device_put(part, self.device)
        return jax.make_array_from_single_device_arrays(shape, self._of_workers, [own])


def _joined_sum(*parts: Any) -> Any:
    joined = jnp.concatenate(parts, axis=1)
    return joined.sum(axis=0, dtype=joined.dtype)
