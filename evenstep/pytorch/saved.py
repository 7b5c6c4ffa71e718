"""What a checkpoint keeps of a balancer, and how its workers find themselves in it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evenstep.balancer import Balancer
from evenstep.core.arrays import as_floats, as_ints
from evenstep.core.limits import UNLIMITED
from evenstep.core.report import Reports
from evenstep.errors import StateFileError


@dataclass(frozen=True)
class Memory:
    """What was known of one worker besides what policies know."""

    speed: float | None = None
    """v, as it was predicted last."""
    cap: int | None = None
    """The largest size that it can run."""


def save(core: Balancer, last: Reports | None, iteration: int) -> dict[str, Any]:
    """Return all of it in plain numbers and strings; what one worker saves fits all."""
    state: dict[str, Any] = {
        "iteration": iteration,
        "total": core.total,
        "workers": list(core.workers),
        "balancer": {name: array.tolist() for name, array in core.state().items()},
    }
    if last is not None:
        state["reports"] = {
            "speeds": None if last.speeds is None else last.speeds.tolist(),
            "caps": None if last.caps is None else last.caps.tolist(),
        }
    return state


def restore(core: Balancer, state: Mapping[str, Any]) -> None:
    """Let a balancer take up a checkpoint, also one of other workers: they go by their names."""
    try:
        total, workers, saved = state["total"], state["workers"], state["balancer"]
    except (KeyError, TypeError):
        raise StateFileError(
            "the state of a balancer must have total, workers and balancer, "
            f"got {', '.join(map(str, state)) or 'nothing'}"
        ) from None
    if total != core.total:
        raise StateFileError(f"total must be that of the checkpoint, {total}, got {core.total}")
    fresh = core.state()
    arrays = {
        name: np.array(values, dtype=fresh[name].dtype)
        for name, values in saved.items() if name in fresh
    }  # fmt: skip
    core.restore(arrays, workers, last_reports(state, core.workers).caps)


def remembered(state: Mapping[str, Any], worker: str) -> Memory:
    """Return what a checkpoint has on one worker; nothing about one that was not there."""
    reports, workers = state.get("reports"), state["workers"]
    if reports is None or worker not in workers:
        return Memory()
    i = workers.index(worker)
    cap = UNLIMITED if reports["caps"] is None else reports["caps"][i]
    return Memory(
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
