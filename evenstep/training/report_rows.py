"""Report rows: the reports of all workers as one small array, gathered by a sum all-reduce.

Each worker writes its own row into an array of zeros, so that the sum over the workers holds all
rows exactly, in whatever order it is computed. A row consists of float32, the dtype of most
gradients, so that it can be sent at the end of a gradient bucket. An extra column after the rows
takes one number of each worker to all others, without another collective call.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evenstep.core import UNLIMITED, Floats, Ints, Plan, Reports, as_floats
from evenstep.errors import DivergedPlans, InvalidSetting

Row = NDArray[np.float32]

WIDTH = 9
"""Numbers per worker: x, t, c, m, device memory, predicted v, cap, age of x and t, digest of plan
and position."""
_UNKNOWN = -1.0
_DIGEST_MASK = 2**24 - 1
"""The 24 bits that a float32 keeps exactly; they also limit the samples of a batch."""


def digest(plan: Plan, position: Sequence[int] = ()) -> int:
    """Return a short hash of the plan and its position in the data.

    They must be the same on all workers.
    """
    head = np.array([plan.number, plan.iteration, *position], dtype="<i8").tobytes()
    crc = zlib.crc32(plan.sizes.astype("<i8").tobytes(), zlib.crc32(head))
    return crc & _DIGEST_MASK


def write_row(
    batch_size: float | None,
    time: float | None,
    cpu: float,
    memory: float,
    device_memory: float | None,
    speed: float | None,
    cap: int | None,
    digest: int,
    age: int | None = 0,
) -> Row:
    """Return the row of one worker; unknown values are None.

    The `age` of x and t is the number of iterations that ended after theirs: a device that runs
    ahead is measured late. An age always fits into a float32, the number of an iteration may not.
    """
    values = (batch_size, time, cpu, memory, device_memory, speed, cap, age, digest)
    return np.array([_UNKNOWN if v is None else v for v in values], dtype=np.float32)


def read_rows(rows: NDArray[np.float32], iteration: int) -> Reports:
    """Return the reports at the boundary of an iteration from the rows of all workers."""
    x, t, cpu, memory, device_memory, speeds, caps, ages, _ = rows.astype(np.float64).T
    observed = (x > 0) & (t > 0)
    known = bool(np.all(speeds > 0))
    return Reports(
        iteration=iteration,
        # Sizes in average samples may be fractions.
        batch_sizes=np.where(observed, np.maximum(np.rint(x), 1), 0).astype(np.int64),
        times=np.where(observed, t, np.nan),
        cpu=np.clip(cpu, 0, 1),
        memory=np.clip(memory, 0, 1),
        device_memory=np.where(device_memory >= 0, np.minimum(device_memory, 1), np.nan),
        speeds=speeds if known else None,
        caps=np.where(caps >= 0, caps, UNLIMITED).astype(np.int64),
        measured=_measured(ages, iteration),
    )


def _measured(ages: Floats, iteration: int) -> Ints | None:
    """Return the iteration of each worker's x and t; None if all are of the last iteration."""
    if not ages.any():
        return None
    return np.where(ages >= 0, np.maximum(iteration - 1 - ages, -1), -1).astype(np.int64)


def check_digests(rows: NDArray[np.float32], plan: Plan, position: Sequence[int] = ()) -> None:
    """Raise DivergedPlans unless all workers used this plan at this position in the data."""
    digests = rows[:, -1].astype(np.int64)
    different = np.flatnonzero(digests != digest(plan, position))
    if len(different):
        raise DivergedPlans(
            "all workers must use the same plan for the same samples, but worker "
            f"{different[0]} used another than plan {plan.number} with sizes "
            f"{plan.sizes.tolist()}, or other samples; do all workers go through the same epochs, "
            "from the same checkpoint, with the same versions of evenstep and numpy?"
        )


class ColumnUser(Protocol):
    """Sends a number that all workers must receive at the same boundary."""

    def say(self) -> float:
        """Return a number that float32 represents exactly; called when the gradients are ready."""
        ...

    def hear(self, numbers: Floats) -> None:
        """Take the numbers of all workers, before the next iteration begins."""
        ...

    def close(self) -> None:
        """Stop background work."""
        ...


class ExtraColumn:
    """The column, which has at most one user; without a user it holds 0."""

    width = 1
    """Numbers per worker."""

    def __init__(self) -> None:
        self.user: ColumnUser | None = None

    def take(self, user: ColumnUser) -> None:
        """Assign the column to a user; all workers must do so before the same iteration."""
        if self.user is not None:
            raise InvalidSetting(
                "samples may migrate under one loader of a balancer, and not where another one "
                "reads a stream, got a second loader with a rule"
            )
        self.user = user

    def slot(self) -> Row:
        """Return the number of this worker."""
        return np.array([0 if self.user is None else self.user.say()], dtype=np.float32)

    def cut(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Pass the column to its user, and return the rows of all workers without it."""
        if self.user is not None:
            self.user.hear(as_floats(rows[:, -1]))
        return rows[:, : -self.width]

    def close(self) -> None:
        """Stop the background work of the user."""
        if self.user is not None:
            self.user.close()
