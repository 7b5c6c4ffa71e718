"""Events: the lines of a run log between its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.errors import InvalidSetting
from evenstep.runlog import checks

EVENTS: dict[str, tuple[str, ...]] = {
    "plan": ("plan", "batch_sizes"),
    "proposal": ("batch_sizes",),
    "phase": ("phase",),
    "advice": ("advice", "worker"),
    "join": ("worker", "workers"),
    "leave": ("worker", "workers"),
    "limit": ("worker", "cap"),
    "note": ("text",),
    "end": (),
}
"""The kinds of events, each with the fields that it must have."""

FIELDS: dict[str, checks.Rule] = {
    "plan": checks.COUNT,
    "batch_sizes": checks.COUNTS,
    "predicted_time": checks.NUMBER,
    "reason": checks.TEXT,
    "phase": checks.NAME,
    "advice": checks.NAME,
    "worker": checks.NAME,
    "workers": checks.NAMES,
    "cap": checks.COUNT,
    "text": checks.TEXT,
}
"""All fields but kind and iteration, each with its rule."""


@dataclass(frozen=True)
class Event:
    """Something that happened at the boundary of an iteration.

    >>> Event("phase", iteration=17)
    Traceback (most recent call last):
    evenstep.errors.InvalidSetting: phase of a 'phase' event must be a non-empty string, got None
    """

    kind: str
    """One of `EVENTS`."""
    iteration: int
    """The first iteration for which it holds."""
    plan: int | None = None
    """Number of the plan adopted."""
    batch_sizes: Sequence[int] | None = None
    """x of each worker: adopted, or only proposed."""
    predicted_time: float | None = None
    """Iteration time, in seconds, expected of the sizes, or if the advice is followed."""
    reason: str | None = None
    """Why, in words."""
    phase: str | None = None
    """The phase that the policy enters."""
    advice: str | None = None
    """What to do with the worker: `remove`."""
    worker: str | None = None
    """The worker that the event is about."""
    workers: Sequence[str] | None = None
    """All workers after a join or leave: the order of the arrays from here on."""
    cap: int | None = None
    """The worker's new limit, in samples."""
    text: str | None = None
    """The text of a note."""

    def __post_init__(self) -> None:
        checks.check("event", self.kind, checks.one_of(EVENTS))
        checks.check("iteration", self.iteration, checks.COUNT)
        object.__setattr__(self, "batch_sizes", _as_tuple(self.batch_sizes))
        object.__setattr__(self, "workers", _as_tuple(self.workers))
        if isinstance(self.predicted_time, float) and not math.isfinite(self.predicted_time):
            object.__setattr__(self, "predicted_time", None)
        for name, rule in FIELDS.items():
            value = getattr(self, name)
            if value is not None or name in EVENTS[self.kind]:
                checks.check(f"{name} of a {self.kind!r} event", value, rule)
        self._check_members()

    def _check_members(self) -> None:
        if self.kind not in ("join", "leave"):
            if self.workers is not None:
                raise InvalidSetting(
                    "only a 'join' or 'leave' event may change the workers, "
                    f"got {checks.short(self.workers)} in a {self.kind!r} event"
                )
            return
        is_member = self.worker in (self.workers or ())
        if is_member != (self.kind == "join"):
            raise InvalidSetting(
                f"workers of a {self.kind!r} event must be those after it, "
                f"got {checks.short(self.workers)} for worker {checks.short(self.worker)}"
            )


def _as_tuple(values: Any) -> Any:
    """Return a list or an array as a tuple, and any other value as it is, for the checks."""
    if isinstance(values, np.ndarray):
        return tuple(values.tolist())
    return tuple(values) if isinstance(values, list) else values
