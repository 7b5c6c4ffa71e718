"""Workers as threads that meet at a barrier, to test what they do together without a framework."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from evenstep.core import Floats

Result = TypeVar("Result")


class Table:
    """Where threads lay down their rows, and take up everybody's."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.rows: dict[int, Floats] = {}
        self.barrier = threading.Barrier(num_workers, timeout=30)


class ThreadCollective:
    """The collective of one thread."""

    def __init__(self, table: Table, worker: int) -> None:
        self._table = table
        self.worker = worker
        self.num_workers = table.num_workers

    def everybody(self, row: Floats) -> Floats:
        table = self._table
        table.rows[self.worker] = row
        table.barrier.wait()
        rows = np.stack([table.rows[worker] for worker in range(self.num_workers)])
        table.barrier.wait()
        return rows


def together(num_workers: int, work: Callable[[ThreadCollective], Result]) -> list[Result]:
    """Return what every worker's work returns; raise what the first of them raised."""
    table = Table(num_workers)

    def run(worker: int) -> Result:
        try:
            return work(ThreadCollective(table, worker))
        except BaseException:
            table.barrier.abort()
            raise

    with ThreadPoolExecutor(num_workers) as pool:
        running = [pool.submit(run, worker) for worker in range(num_workers)]
        errors = [error for one in running if (error := one.exception()) is not None]
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [one.result() for one in running]
