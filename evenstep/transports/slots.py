"""Slots: the reports of all workers as one small array that a sum all-reduce fills.

Each worker writes its own row into zeros, so that the sum over workers is every row, to the bit,
on every worker, whatever the order of the summation. A row fits into float32, the dtype of most
gradients, so that it can ride at the end of a gradient bucket.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from evenstep.core.plan import Plan
from evenstep.core.report import Reports
from evenstep.errors import DivergedPlans

Row = NDArray[np.float32]

WIDTH = 7
"""Numbers per worker: x, t, c, m, device memory, predicted v, digest of the plan."""
_UNKNOWN = -1.0
_DIGEST_MASK = 2**24 - 1
"""As many bits as a float32 keeps exactly; so many samples fit into a batch, too."""


def digest(plan: Plan) -> int:
    """Return a short hash of what must be the same on all workers: number, start and sizes."""
    head = np.array([plan.number, plan.iteration], dtype="<i8").tobytes()
    crc = zlib.crc32(plan.sizes.astype("<i8").tobytes(), zlib.crc32(head))
    return crc & _DIGEST_MASK


def write_row(
    batch_size: int | None,
    time: float | None,
    cpu: float,
    memory: float,
    device_memory: float | None,
    speed: float | None,
    plan: Plan,
) -> Row:
    """Return one worker's row; what it does not know is None."""
    values = (batch_size, time, cpu, memory, device_memory, speed, digest(plan))
    return np.array([_UNKNOWN if v is None else v for v in values], dtype=np.float32)


def read_rows(rows: NDArray[np.float32], iteration: int) -> Reports:
    """Return the reports at the boundary of an iteration from the rows of all workers."""
    x, t, cpu, memory, device_memory, speeds, _ = rows.astype(np.float64).T
    observed = (x > 0) & (t > 0)
    known = bool(np.all(speeds > 0))
    return Reports(
        iteration=iteration,
        batch_sizes=np.where(observed, x, 0).astype(np.int64),
        times=np.where(observed, t, np.nan),
        cpu=np.clip(cpu, 0, 1),
        memory=np.clip(memory, 0, 1),
        device_memory=np.where(device_memory >= 0, np.minimum(device_memory, 1), np.nan),
        speeds=speeds if known else None,
    )


def check_digests(rows: NDArray[np.float32], plan: Plan) -> None:
    """Raise DivergedPlans unless every worker used the same plan in the last iteration."""
    digests = rows[:, -1].astype(np.int64)
    different = np.flatnonzero(digests != digest(plan))
    if len(different):
        raise DivergedPlans(
            f"all workers must use the same plan, but worker {different[0]} used another than "
            f"plan {plan.number} with sizes {plan.sizes.tolist()}; are all workers on the same "
            "versions of evenstep and numpy?"
        )
