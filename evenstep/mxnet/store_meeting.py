"""Meeting over a kvstore: servers add up what is pushed, so a row in zeros reaches everybody."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from numpy.typing import NDArray

from evenstep.core.arrays import Floats
from evenstep.mxnet.carrier import FIRST_ROWS

Table = NDArray[np.float32]


class StoreMeeting:
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
