"""Exchanges small values between the workers of a kvstore, whose servers sum what is pushed.

A server passes every key to its optimizer. Keys from `FIRST_ROWS` on are not parameters but rows
that workers exchange, and keep the sum of the last pushes. Servers import this module.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from numpy.typing import NDArray

from evenstep.core import Floats

Table = NDArray[np.float32]


class StoreCollective:
    """Exchanges rows over a kvstore that sums: `dist_sync`, or `local` with one worker.

    Tables of one size share a key, which all workers make when they first need it.
    """

    def __init__(self, store: Any) -> None:
        self.worker = int(store.rank)
        self.num_workers = int(store.num_workers)
        self._store = store
        # Keys are kept with the store: to make one twice would wait forever.
        self._keys: dict[int, int] = vars(store).setdefault("evenstep_rows", {})

    def everybody(self, row: Floats) -> Floats:
        """Return the rows of all workers."""
        # Servers sum in float32, which is exact for one 16-bit number and zeros.
        words = np.ascontiguousarray(row, dtype=np.float64).view(np.uint16)
        table = np.zeros((self.num_workers, len(words)), dtype=np.float32)
        table[self.worker] = words
        self.push(table)
        rows: Floats = self.pull(table).astype(np.uint16).view(np.float64)
        return rows

    def push(self, table: Table) -> None:
        """Add a table to those of all other workers; returns at once."""
        self._store.push(self._key_of(table), mx.nd.array(table.ravel()))

    def pull(self, table: Table) -> Table:
        """Return the sum of the tables of all workers, of which this is one."""
        summed = mx.nd.empty(table.size)
        self._store.pull(self._key_of(table), out=summed)
        rows: Table = summed.asnumpy().reshape(table.shape)
        return rows

    def _key_of(self, table: Table) -> int:
        if table.size not in self._keys:
            self._keys[table.size] = FIRST_ROWS + len(self._keys)
            self._store.init(self._keys[table.size], mx.nd.zeros(table.size))
        return self._keys[table.size]


FIRST_ROWS = 100_000
"""The first key of rows; parameters have keys below it. MXNet multiplies a key by 9973 and keeps
the result in 32 bits, so that keys must stay below 215,000."""


class RowCarrier(mx.optimizer.Optimizer):  # type: ignore[misc]  # MXNet is not annotated
    """Updates parameters by the optimizer of a user, and stores rows unchanged.

    The parameters of the training have keys from `first` on, and are 0, 1, ... to its optimizer.
    """

    def __init__(self, optimizer: Any, first: int) -> None:
        super().__init__(multi_precision=optimizer.multi_precision)
        self.optimizer = optimizer
        self.first = first

    def create_state_multi_precision(self, index: int, weight: Any) -> Any:
        """Return the state of a key; rows have none."""
        if index >= FIRST_ROWS:
            return None
        return self.optimizer.create_state_multi_precision(index - self.first, weight)

    def update_multi_precision(self, index: int, weight: Any, grad: Any, state: Any) -> None:
        """Update the value of a key by the sum of the pushes."""
        if index >= FIRST_ROWS:
            weight[:] = grad
        else:
            self.optimizer.update_multi_precision(index - self.first, weight, grad, state)
