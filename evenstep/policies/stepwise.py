"""`stepwise`: the paper's Alg. 2, one pair of workers at a time, for accelerators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from evenstep.core import (
    LARGEST_TOTAL,
    Advice,
    Bools,
    Decision,
    Floats,
    Ints,
    View,
    fits,
    keep_current,
    remap_rows,
    require_whole,
)
from evenstep.policies.memory_model import GUARD, MemoryModel

FAST, FINE = "fast-approach", "fine-tune"
LONGEST_WINDOW = 100
"""Iterations that a leader must have led, at most."""
_ROUNDING = 1e-9
"""Times whose relative difference is smaller are equal: no clock can distinguish them."""


@dataclass(frozen=True, eq=False)
class StepwiseState:
    """The state of Alg. 2; every array has the worker axis first."""

    past: Floats
    """t of the last iterations, newest last; NaN if missing."""
    memory: MemoryModel
    was_slower: Bools
    """Entry (i, j): in some iteration so far, worker i was slower than worker j."""
    fine: bool = False
    """Whether the fine-tune phase has begun, which never ends."""


@dataclass(frozen=True)
class Stepwise:
    """Move `step` samples from the straggler to the leader once the leader has led long enough.

    Where Alg. 2 is ambiguous or gets stuck, the default differs from it: a straggler that is too
    small to give up a step is reported and no longer counts as the straggler, so that the others
    continue; the leader must have memory for the step, not only before it. `literal=True` follows
    the pseudo-code exactly.
    """

    step: int = 5
    """Δ: samples moved at once, in the fast-approach phase."""
    observation_window: int = 5
    """D: iterations that the leader must have led, in the fast-approach phase."""
    fine_step: int = 1
    fine_window: int = 20
    literal: bool = False

    uses_speeds: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("step", "observation_window", "fine_step", "fine_window"):
            most = LONGEST_WINDOW if name.endswith("window") else LARGEST_TOTAL
            require_whole(f"{name} of stepwise", getattr(self, name), most=most)

    def init(self, num_workers: int) -> StepwiseState:
        window = max(self.observation_window, self.fine_window)
        return StepwiseState(
            past=np.full((num_workers, window), np.nan),
            memory=MemoryModel.fresh(num_workers),
            was_slower=np.zeros((num_workers, num_workers), dtype=bool),
        )

    def remap(self, state: StepwiseState, keep: Ints) -> StepwiseState:
        # Columns move with the rows, which remap_rows cannot do.
        stays = np.flatnonzero(keep >= 0)
        square = np.zeros((len(keep), len(keep)), dtype=bool)
        square[np.ix_(stays, stays)] = state.was_slower[np.ix_(keep[stays], keep[stays])]
        return StepwiseState(
            past=remap_rows(state.past, self.init(len(keep)).past, keep),
            memory=remap_rows(state.memory, MemoryModel.fresh(len(keep)), keep),
            was_slower=square,
            fine=state.fine,
        )

    def plan(self, view: View, state: StepwiseState) -> tuple[Decision, StepwiseState]:
        state = _observe(view, state)
        sizes = keep_current(view)
        if sizes is not view.current:
            return Decision(sizes, "limits", phase=_phase(state)), state
        if not view.observed.any() or not _in_effect(view):
            return Decision(sizes, phase=_phase(state)), state
        return self._move(view, state)

    def _move(self, view: View, state: StepwiseState) -> tuple[Decision, StepwiseState]:
        step, window = self._pace(view, state)
        times = view.reports.times
        slowest = int(np.nanargmax(times))
        too_small = view.current - step < np.maximum(view.limits.minimum, 1)
        advice = (Advice(slowest, None),) if too_small[slowest] else ()
        stay = Decision(view.current, phase=_phase(state), advice=advice)
        if self.literal and advice:
            return stay, state
        leader = _extreme(times, self._may_lead(view, state, step), lowest=True)
        straggler = _extreme(times, np.full(len(times), self.literal) | ~too_small, lowest=False)
        if leader is None or straggler is None or leader == straggler:
            return stay, state
        led = _is_less(state.past[leader, -window:], state.past[straggler, -window:])
        if led.all():
            sizes = view.current.copy()
            sizes[leader] += step
            sizes[straggler] -= step
            if not fits(sizes, view):
                return stay, state
            reason = f"{step} from straggler {straggler} to leader {leader}"
            return Decision(sizes, reason, phase=_phase(state), advice=advice), state
        if state.was_slower[leader, straggler]:
            state = replace(state, fine=True)
        return replace(stay, phase=_phase(state)), state

    def _pace(self, view: View, state: StepwiseState) -> tuple[int, int]:
        """Return the step, in whole granules, and the observation window of the phase."""
        step = self.fine_step if state.fine else self.step
        granularity = view.limits.granularity
        window = self.fine_window if state.fine else self.observation_window
        return -(-step // granularity) * granularity, window

    def _may_lead(self, view: View, state: StepwiseState, step: int) -> Bools:
        used = state.memory.used
        unknown = np.isnan(used)
        if self.literal:
            return unknown | (used <= GUARD)
        room = view.current + step <= view.limits.cap
        return room & (unknown | (used + step * state.memory.slopes() <= GUARD))


def _observe(view: View, state: StepwiseState) -> StepwiseState:
    times = view.reports.times
    slower = _is_less(times[None, :], times[:, None])
    return replace(
        state,
        past=np.column_stack((state.past[:, 1:], times)) if view.observed.any() else state.past,
        memory=state.memory.observe(view.reports),
        was_slower=state.was_slower | slower,
    )


def _is_less(a: Floats, b: Floats) -> Bools:
    """Whether a is less than b by more than rounding errors; False if one is missing."""
    with np.errstate(invalid="ignore"):
        less: Bools = a < b * (1 - _ROUNDING)
    return less


def _in_effect(view: View) -> bool:
    """Whether the times are those of the newest sizes: a move is judged only after it happened."""
    seen = view.observed
    return np.array_equal(view.reports.batch_sizes[seen], view.current[seen])


def _extreme(times: Floats, eligible: Bools, lowest: bool) -> int | None:
    """Return the eligible worker with the lowest or highest time, ties to the lower worker."""
    eligible = eligible & np.isfinite(times)
    if not eligible.any():
        return None
    if lowest:
        return int(np.argmin(np.where(eligible, times, np.inf)))
    return int(np.argmax(np.where(eligible, times, -np.inf)))


def _phase(state: StepwiseState) -> str:
    return FINE if state.fine else FAST
