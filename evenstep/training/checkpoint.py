"""What a checkpoint keeps of a balancer, and how its workers find themselves in it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evenstep.core import UNLIMITED, Ints, Plan, Reports, as_floats, as_ints
from evenstep.core.planner import Planner
from evenstep.errors import StateFileError


@dataclass(frozen=True)
class Remembered:
    """What was known of one worker besides what policies know."""

    speed: float | None = None
    """v, as it was predicted last."""
    cap: int | None = None
    """The largest size that it can run."""


def save(planner: Planner, last: Reports | None, iteration: int) -> dict[str, Any]:
    """Return all of it in plain numbers and strings; what one worker saves fits all."""
    learned = {name: array.tolist() for name, array in planner.state().items()}
    return {"balancer": learned, **_common(planner.total, planner.workers, last, iteration)}


def save_plan(
    plan: Plan, workers: Sequence[str], last: Reports | None, iteration: int
) -> dict[str, Any]:
    """Return what a checkpoint keeps where all that was learned is with a coordinator."""
    return {"sizes": plan.sizes.tolist(), **_common(plan.total, workers, last, iteration)}


def saved_sizes(state: Mapping[str, Any], workers: Sequence[str], total: int) -> Ints | None:
    """Return the sizes that these workers had in a checkpoint; None if it was made by others."""
    _require(state, "iteration", "total", "workers", "sizes")
    _check_total(state["total"], total)
    if sorted(state["workers"]) != sorted(workers):
        return None
    sizes = dict(zip(state["workers"], state["sizes"], strict=True))
    return as_ints([sizes[worker] for worker in workers])


def _common(
    total: int, workers: Sequence[str], last: Reports | None, iteration: int
) -> dict[str, Any]:
    """Return what every checkpoint has."""
    state: dict[str, Any] = {"iteration": iteration, "total": total, "workers": list(workers)}
    if last is not None:
        state["reports"] = {
            "speeds": None if last.speeds is None else last.speeds.tolist(),
            "caps": None if last.caps is None else last.caps.tolist(),
        }
    return state


def restore(planner: Planner, state: Mapping[str, Any]) -> None:
    """Let a balancer take up a checkpoint, also one of other workers: they go by their names."""
    _require(state, "total", "workers", "balancer")
    _check_total(state["total"], planner.total)
    fresh = planner.state()
    arrays = {
        name: np.array(values, dtype=fresh[name].dtype)
        for name, values in state["balancer"].items() if name in fresh
    }  # fmt: skip
    planner.restore(arrays, state["workers"], last_reports(state, planner.workers).caps)


def remembered(state: Mapping[str, Any], worker: str) -> Remembered:
    """Return what a checkpoint has on one worker; nothing about one that was not there."""
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
    """Return what a checkpoint has on all workers, so that the next one has it too."""
    known = [remembered(state, worker) for worker in workers]
    speeds = [memory.speed for memory in known if memory.speed is not None]
    return replace(
        Reports.silent(int(state["iteration"]), len(workers)),
        speeds=as_floats(speeds) if len(speeds) == len(known) else None,
        caps=as_ints([UNLIMITED if memory.cap is None else memory.cap for memory in known]),
    )


def _require(state: Mapping[str, Any], *names: str) -> None:
    if any(name not in state for name in names):
        raise StateFileError(
            f"the state of a balancer must have {', '.join(names[:-1])} and {names[-1]}, "
            f"got {', '.join(map(str, state)) or 'nothing'}"
        )


def _check_total(saved: object, total: int) -> None:
    if saved != total:
        raise StateFileError(f"total must be that of the checkpoint, {saved}, got {total}")
