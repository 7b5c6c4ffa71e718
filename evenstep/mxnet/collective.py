"""Meeting over a kvstore: servers add up what is pushed, so a row in zeros reaches everybody.

A server hands every key to its optimizer. Those from `FIRST_ROWS` on are no parameters but rows
that workers tell each other, and keep the sum of what was pushed last. Servers import this module.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from numpy.typing import NDArray

from evenstep.core import Floats

Table = NDArray[np.float32]


class StoreCollective:
    """The meeting of all workers of a kvstore that sums: `dist_sync`, or `local` with one of them.

    Tables of one size share a key, which all workers make when they first need it.
    """

    def __init__(self, store: Any) -> None:
        self.worker = int(store.rank)
        self.num_workers = int(store.num_workers)
        self._store = store
        # A store has them for good: making one twice would wait forever.
        self._keys: dict[int, int] = vars(store).setdefault("evenstep_rows", {})

    def everybody(self, row: Floats) -> Floats:
        """Return the rows of all workers."""
        # Servers add up in float32, which keeps 16 bits and a lot of zeros exactly.
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
        """Return the sum of the tables that were pushed, of which this is one."""
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
    """Updates parameters by the optimizer of a user, and takes rows as they are.

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
        """Update what is stored under a key by the sum of what was pushed."""
        if index >= FIRST_ROWS:
            weight[:] = grad
        else:
            self.optimizer.update_multi_precision(index - self.first, weight, grad, state)
