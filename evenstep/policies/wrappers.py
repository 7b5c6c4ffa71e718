"""Wrappers: policies that hold back the decisions of an inner policy, or narrow its limits.

The inner policy sees every boundary. As policies read the sizes in force from the view, decisions
that are held back do not confuse it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evenstep.core import (
    LARGEST_TOTAL,
    UNLIMITED,
    Decision,
    Ints,
    Policy,
    View,
    even_sizes,
    fits,
    predict_times,
    require_whole,
)
from evenstep.errors import InvalidSetting


@dataclass(frozen=True)
class Wrapper:
    """The part that all wrappers share: their state is that of the inner policy."""

    inner: Policy[Any]

    @property
    def uses_speeds(self) -> bool:
        return self.inner.uses_speeds

    def init(self, num_workers: int) -> Any:
        return self.inner.init(num_workers)

    def remap(self, state: Any, keep: Ints) -> Any:
        return self.inner.remap(state, keep)


@dataclass(frozen=True)
class Limited(Wrapper):
    """Keep sizes between `minimum` and `maximum`, in multiples of `granularity`."""

    minimum: int = 0
    maximum: int = UNLIMITED
    granularity: int = 1

    def __post_init__(self) -> None:
        require_whole("minimum of limited", self.minimum, least=0, most=LARGEST_TOTAL)
        require_whole("maximum of limited", self.maximum)
        require_whole("granularity of limited", self.granularity, most=LARGEST_TOTAL)
        if self.minimum > self.maximum:
            raise InvalidSetting(
                "limited needs minimum <= maximum, "
                f"got minimum {self.minimum} and maximum {self.maximum}"
            )

    def plan(self, view: View, state: Any) -> tuple[Decision, Any]:
        limits = view.limits.tighten(self.minimum, self.maximum, self.granularity)
        return self.inner.plan(replace(view, limits=limits), state)


@dataclass(frozen=True)
class EveryN(Wrapper):
    """Adopt new sizes only in every n-th iteration."""

    n: int = 10

    def __post_init__(self) -> None:
        require_whole("n of every_n", self.n)

    def plan(self, view: View, state: Any) -> tuple[Decision, Any]:
        decision, state = self.inner.plan(view, state)
        if view.reports.iteration % self.n:
            decision = _held_back(decision, view)
        return decision, state


@dataclass(frozen=True)
class DeadBand(Wrapper):
    """Adopt new sizes only if the size of some worker changes by more than `threshold` of it."""

    threshold: float = 0.05

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise InvalidSetting(f"threshold of dead_band must be >= 0, got {self.threshold}")

    def plan(self, view: View, state: Any) -> tuple[Decision, Any]:
        decision, state = self.inner.plan(view, state)
        change = np.abs(decision.sizes - view.current) / np.maximum(view.current, 1)
        if change.max() <= self.threshold:
            decision = _held_back(decision, view)
        return decision, state


@dataclass(frozen=True)
class ObserveOnly(Wrapper):
    """Run plain BSP; the plan has the sizes of the inner policy as `proposed`."""

    def plan(self, view: View, state: Any) -> tuple[Decision, Any]:
        decision, state = self.inner.plan(view, state)
        sizes = even_sizes(view.total, view.limits)
        return replace(_in_place_of(decision, view, sizes), reason="observe only"), state


def _held_back(decision: Decision, view: View) -> Decision:
    """Return the decision to keep the current sizes, if the limits allow them."""
    if np.array_equal(decision.sizes, view.current) or not fits(view.current, view):
        return decision
    return _in_place_of(decision, view, view.current)


def _in_place_of(decision: Decision, view: View, sizes: Ints) -> Decision:
    return replace(
        decision,
        sizes=sizes,
        reason="",
        predicted_times=predict_times(view, sizes),
        proposed=decision.sizes,
    )
