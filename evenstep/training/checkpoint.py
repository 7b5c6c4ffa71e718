"""The state of a balancer in a checkpoint, in which workers are identified by their names."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evenstep.core import UNLIMITED, Ints, Plan, Reports, as_floats, as_ints, to_arrays
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


def save(planner: Planner, last: Reports | None, iteration: int) -> dict[str, Any]:
    """Return the state in plain numbers and strings; the state of one worker fits all."""
    learned = {name: array.tolist() for name, array in planner.state().items()}
    return {"balancer": learned, **_common(planner.total, planner.workers, last, iteration)}


def save_plan(
    plan: Plan, workers: Sequence[str], last: Reports | None, iteration: int
) -> dict[str, Any]:
    """Return the state where a coordinator keeps everything that was learned."""
    return {"sizes": plan.sizes.tolist(), **_common(plan.total, workers, last, iteration)}


def saved_sizes(state: Mapping[str, Any], workers: Sequence[str], total: int) -> Ints | None:
    """Return the sizes of these workers in a checkpoint; None if other workers made it."""
    _require(state, "iteration", "total", "workers", "sizes")
    _check_total(state["total"], total)
    if sorted(state["workers"]) != sorted(workers):
        return None
    sizes = dict(zip(state["workers"], state["sizes"], strict=True))
    return as_ints([sizes[worker] for worker in workers])


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


def saved_total(state: Mapping[str, Any], total: int, given: int) -> int:
    """Return the total of a checkpoint, for a balancer with this total now and at first.

    Raises StateFileError unless one of the two is that of the checkpoint.
    """
    _require(state, "total", "workers", "balancer")
    if state["total"] != total and state.get(GIVEN_TOTAL, state["total"]) != given:
        _check_total(state["total"], total)
    return int(state["total"])


def restore(planner: Planner, state: Mapping[str, Any]) -> None:
    """Restore a planner from a checkpoint, also of other workers: they are matched by name."""
    fresh = planner.state()
    arrays = {
        name: np.array(values, dtype=fresh[name].dtype)
        for name, values in state["balancer"].items() if name in fresh
    }  # fmt: skip
    if _policy_parts(state["balancer"]) != _policy_parts(fresh):
        _log.warning(
            "the checkpoint is of another policy, or another version of it, than %s: batch sizes "
            "are restored, and what the policy has learned begins again", planner.policy
        )  # fmt: skip
        learned = to_arrays(planner.policy.init(len(state["workers"])))
        arrays |= {f"policy.{name}": array for name, array in learned.items()}
    planner.restore(arrays, state["workers"], last_reports(state, planner.workers).caps)


def remembered(state: Mapping[str, Any], worker: str) -> Remembered:
    """Return what a checkpoint holds about one worker; empty for a new worker."""
    reports, workers = state.get("reports"), state["workers"]
    if reports is None or worker not in workers:
        return Remembered()
    i = workers.index(worker)
    cap = UNLIMITED if reports["caps"] is None else reports["caps"][i]
    return Remembered(
        speed=None if reports["speeds"] is None else reports["speeds"][i],
        cap=cap if cap < UNLIMITED else None,
    )


def last_reports(state: Mapping[str, Any], workers: Sequence[str]) -> Reports:
    """Return the reports of all workers in a checkpoint, so that the next one keeps them."""
    known = [remembered(state, worker) for worker in workers]
    speeds = [memory.speed for memory in known if memory.speed is not None]
    return replace(
        Reports.silent(int(state["iteration"]), len(workers)),
        speeds=as_floats(speeds) if len(speeds) == len(known) else None,
        caps=as_ints([UNLIMITED if memory.cap is None else memory.cap for memory in known]),
    )


def _policy_parts(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith("policy.")}


def _require(state: Mapping[str, Any], *names: str) -> None:
    if any(name not in state for name in names):
        raise StateFileError(
            f"the state of a balancer must have {', '.join(names[:-1])} and {names[-1]}, "
            f"got {', '.join(map(str, state)) or 'nothing'}"
        )


def _check_total(saved: object, total: int) -> None:
    if saved != total:
        raise StateFileError(f"total must be that of the checkpoint, {saved}, got {total}")
