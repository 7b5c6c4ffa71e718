"""The state of a balancer in a checkpoint, in which workers are identified by their names."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evenstep.core import (
    SEAL,
    UNLIMITED,
    Ints,
    Plan,
    Reports,
    SavedState,
    as_array,
    as_floats,
    as_ints,
    to_arrays,
)
from evenstep.core.planner import Planner
from evenstep.errors import StateFileError

_log = logging.getLogger(__name__)

GIVEN_TOTAL = "given total"
"""The key of the total that a balancer was made with, as it may have changed since."""


@dataclass(frozen=True)
class Remembered:
    """The last report of one worker, as a checkpoint holds it."""

    speed: float | None = None
    """v, the last prediction."""
    cap: int | None = None
    """The largest batch size that it can run."""


@dataclass(frozen=True)
class SavedBalancer:
    """The fields of every state of a balancer with named workers, checked."""

    fields: SavedState
    iteration: int
    total: int
    known: Mapping[str, Remembered]
    """The workers in their order, and what is known about each."""

    @classmethod
    def of(cls, state: object, *names: str) -> SavedBalancer:
        """Read a state that must also have these fields, or raise StateFileError."""
        fields = SavedState("a balancer", state, "iteration", "total", "workers", *names)
        workers = fields.items("workers")
        if not workers or not all(isinstance(worker, str) for worker in workers):
            raise fields.wrong("workers", "names")
        if len(set(workers)) < len(workers):
            raise fields.wrong("workers", "names of which none is there twice")
        known = dict(zip(workers, _remembered(fields, len(workers)), strict=True))
        total = fields.whole("total", least=1, most=UNLIMITED)
        return cls(fields, fields.whole("iteration", most=UNLIMITED), total, known)

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(self.known)

    def about(self, worker: str) -> Remembered:
        """Return what is known about a worker; nothing about a new one."""
        return self.known.get(worker, Remembered())

    def last_reports(self, workers: Sequence[str]) -> Reports:
        """Return the reports of these workers, so that the next checkpoint keeps them."""
        known = [self.about(worker) for worker in workers]
        speeds = [memory.speed for memory in known if memory.speed is not None]
        return replace(
            Reports.silent(self.iteration, len(workers)),
            speeds=as_floats(speeds) if len(speeds) == len(known) else None,
            caps=as_ints([UNLIMITED if memory.cap is None else memory.cap for memory in known]),
        )


def save(planner: Planner, last: Reports | None, iteration: int) -> dict[str, Any]:
    """Return the state in plain numbers and strings; the state of one worker fits all."""
    learned = {name: array.tolist() for name, array in planner.state().items()}
    return {"balancer": learned, **_common(planner.total, planner.workers, last, iteration)}


def save_plan(
    plan: Plan, workers: Sequence[str], last: Reports | None, iteration: int
) -> dict[str, Any]:
    """Return the state where a coordinator keeps everything that was learned."""
    return {"sizes": plan.sizes.tolist(), **_common(plan.total, workers, last, iteration)}


def saved_sizes(saved: SavedBalancer, workers: Sequence[str], total: int) -> Ints | None:
    """Return the sizes of these workers in a checkpoint; None if other workers made it."""
    check_total(saved.total, total)
    sizes = saved.fields.wholes("sizes", len(saved.workers))
    if sum(sizes.tolist()) != total:
        raise saved.fields.wrong("sizes", f"numbers that add up to {total}")
    if sorted(saved.workers) != sorted(workers):
        return None
    by_name = dict(zip(saved.workers, sizes.tolist(), strict=True))
    return as_ints([by_name[worker] for worker in workers])


def _common(
    total: int, workers: Sequence[str], last: Reports | None, iteration: int
) -> dict[str, Any]:
    """Return the fields of every checkpoint."""
    state: dict[str, Any] = {"iteration": iteration, "total": total, "workers": list(workers)}
    if last is not None:
        state["reports"] = {
            "speeds": None if last.speeds is None else last.speeds.tolist(),
            "caps": None if last.caps is None else last.caps.tolist(),
        }
    return state


def saved_total(saved: SavedBalancer, total: int, given: int) -> int:
    """Return the total of a checkpoint, for a balancer with this total now and at first.

    Raises StateFileError unless one of the two is that of the checkpoint.
    """
    fields = saved.fields
    first = fields.whole(GIVEN_TOTAL, least=1) if GIVEN_TOTAL in fields else saved.total
    if saved.total != total and first != given:
        check_total(saved.total, total)
    return saved.total


def restore(planner: Planner, saved: SavedBalancer) -> None:
    """Restore a planner from a checkpoint, also of other workers: they are matched by name."""
    learned, fresh = saved.fields["balancer"], planner.state()
    if not isinstance(learned, Mapping):
        raise saved.fields.wrong("balancer", "a dict")
    arrays = {name: _like(fresh[name], learned[name]) for name in learned if name in fresh}
    begins_again = _policy_parts(learned) != _policy_parts(fresh)
    if begins_again:
        parts = to_arrays(planner.policy.init(len(saved.workers)))
        arrays |= {f"policy.{name}": array for name, array in parts.items()}
    caps = saved.last_reports(planner.workers).caps
    planner.restore(arrays, saved.workers, caps, saved.total)
    if begins_again:
        _log.warning(
            "the checkpoint is of another policy, or another version of it, than %s: batch sizes "
            "are restored, and what the policy has learned begins again", planner.policy
        )  # fmt: skip


def _like(fresh: Any, values: object) -> Any:
    """Return saved values as an array of the same type, if it is at least of the same kind."""
    array = as_array(values)
    if array is None or array.dtype.kind != fresh.dtype.kind:
        return array
    return array.astype(fresh.dtype)


def _policy_parts(names: Iterable[str]) -> set[str]:
    return {n for n in names if str(n).startswith("policy.") and n != f"policy.{SEAL}"}


def _remembered(fields: SavedState, num_workers: int) -> list[Remembered]:
    """Return what the last reports of all workers say."""
    if "reports" not in fields:
        return [Remembered()] * num_workers
    reports = SavedState("a balancer", fields["reports"], "speeds", "caps")
    speeds: list[float | None] = [None] * num_workers
    caps: list[int | None] = [None] * num_workers
    if reports["speeds"] is not None:
        speeds = [_speed(reports, speed) for speed in reports.items("speeds")]
    if reports["caps"] is not None:
        limits = reports.wholes("caps", num_workers).tolist()
        caps = [cap if cap < UNLIMITED else None for cap in limits]
    if len(speeds) != num_workers:
        raise reports.wrong("speeds", f"{num_workers} numbers")
    return [Remembered(speed, cap) for speed, cap in zip(speeds, caps, strict=True)]


def _speed(reports: SavedState, speed: object) -> float:
    if not isinstance(speed, float) or not 0 < speed < math.inf:
        raise reports.wrong("speeds", "finite numbers > 0")
    return speed


def check_total(saved: int, total: int) -> None:
    """Raise StateFileError unless a balancer has the total of a checkpoint."""
    if saved != total:
        raise StateFileError(f"total must be that of the checkpoint, {saved}, got {total}")
