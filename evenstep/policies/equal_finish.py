"""`equal_finish`: a filter per worker and the exact split; the default on accelerators.

A worker of size 0 has no times to report, so that it is tried again with one granule after some
patience, which doubles each time in vain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from evenstep.core import (
    Advice,
    Bools,
    Decision,
    Floats,
    Ints,
    Limits,
    View,
    as_ints,
    fits,
    keep_current,
)
from evenstep.core.rows import remap_rows
from evenstep.core.short_form import require_whole
from evenstep.core.split import makespan, split_affine
from evenstep.errors import InfeasibleLimits, InvalidSetting
from evenstep.policies.finish_filter import FinishFilter
from evenstep.policies.memory_model import MemoryModel
from evenstep.policies.removal import advise_removal


@dataclass(frozen=True, eq=False)
class EqualFinishState:
    """What is known of the workers; every array has one entry per worker."""

    filter: FinishFilter
    memory: MemoryModel
    bench: Bench


@dataclass(frozen=True)
class EqualFinish:
    """Size batches so that all workers finish together, by what each was seen to take.

    Goes past Alg. 2: every worker is moved at once, by as much as its slope promises; a move is
    made only where it gains more than the noise could feign.
    """

    least_gain: float = 0.01
    """Predicted gain below which no new sizes are adopted."""
    largest_move: float = 3.0
    """A size changes at most by this factor at once."""
    patience: int = 32
    """Iterations after which a benched worker is tried again, doubled each time in vain."""

    uses_speeds: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.least_gain >= 0:
            raise InvalidSetting(f"least_gain of equal_finish must be >= 0, got {self.least_gain}")
        if not 1 < self.largest_move < math.inf:
            raise InvalidSetting(
                f"largest_move of equal_finish must be finite and > 1, got {self.largest_move}"
            )
        require_whole("patience of equal_finish", self.patience)

    def init(self, num_workers: int) -> EqualFinishState:
        return EqualFinishState(
            filter=FinishFilter.fresh(num_workers),
            memory=MemoryModel.fresh(num_workers),
            bench=Bench.fresh(num_workers),
        )

    def remap(self, state: EqualFinishState, keep: Ints) -> EqualFinishState:
        return remap_rows(state, self.init(len(keep)), keep)

    def plan(self, view: View, state: EqualFinishState) -> tuple[Decision, EqualFinishState]:
        state = self._observe(view, state)
        if not state.filter.seen.any():
            sizes = keep_current(view)
            return Decision(sizes, "" if sizes is view.current else "limits"), state
        known = state.filter.filled(view.current)
        due = state.bench.due(view.current, self.patience) & _may_work(view.limits)
        trusted = self._trusted(view, state, known, due)
        best = split_affine(view.total, known.offsets(), known.slope, trusted)
        tried = due | state.bench.probing
        best, advice = _without_dead_weight(view, known, best, trusted, tried)
        sizes, reason = self._weigh(view, known, best, forced=bool(due.any()))
        return Decision(sizes, reason, known.times_at(sizes), advice), state

    def _observe(self, view: View, state: EqualFinishState) -> EqualFinishState:
        reports, observed = view.reports, view.observed
        known = state.filter.reopened(state.bench.back(view.current) & observed)
        return EqualFinishState(
            filter=known.observe(reports.batch_sizes, reports.times),
            memory=state.memory.observe(reports),
            bench=state.bench.observe(view.current, observed, view.limits.granularity),
        )

    def _trusted(
        self, view: View, state: EqualFinishState, known: FinishFilter, due: Bools
    ) -> Limits:
        """Return how far each size may move at once: the line is only trusted near its point."""
        given = view.limits
        most = np.minimum(state.memory.caps(), np.floor(self.largest_move * known.size))
        hi = np.maximum(known.size, most)
        lo = np.ceil(known.size / self.largest_move)
        hi, lo = state.bench.bounds(view.current, due, lo, hi, given.granularity)
        # What is given binds at once, however far it is from the sizes seen so far.
        lo, hi = (np.clip(bound, given.minimum, given.cap) for bound in (lo, hi))
        near = Limits(as_ints(lo), as_ints(hi), given.granularity)
        for limits in (near, given.tighten(cap=state.memory.caps())):
            try:
                limits.bounds(view.total)
            except InfeasibleLimits:
                continue
            return limits
        return given

    def _weigh(self, view: View, known: FinishFilter, best: Ints, forced: bool) -> tuple[Ints, str]:
        """Return the best sizes if they gain more than the noise could feign, else the current."""
        if np.array_equal(best, view.current):
            return view.current, ""
        if not fits(view.current, view):
            return best, "limits"
        times = np.where(view.current > 0, known.times_at(view.current), 0.0)
        slowest = int(np.argmax(times))
        time = makespan(best, known.offsets(), known.slope)
        # The slowest of n looks slower than it is, by the expected maximum of n errors.
        feigned = math.sqrt(2 * round(math.log(view.num_workers), 9))
        least = max(self.least_gain, float(known.uncertainty()[slowest]) * feigned)
        if forced or times[slowest] / time - 1 > least:
            return best, f"predicted iteration time {times[slowest]:.4g} s -> {time:.4g} s"
        return view.current, ""


def _may_work(limits: Limits) -> Bools:
    may: Bools = limits.cap >= limits.granularity
    return may


def _without_dead_weight(
    view: View, known: FinishFilter, sizes: Ints, limits: Limits, tried: Bools
) -> tuple[Ints, tuple[Advice, ...]]:
    """Return the sizes, without a worker that the job is faster without if it may be benched.

    A worker that is being tried again stays: what is known of it is what is in doubt.
    """
    offsets, slopes = known.offsets(), known.slope
    # How far sizes may move at once does not say what is worth keeping.
    given = Limits(view.limits.minimum, limits.cap, limits.granularity)
    advice = advise_removal(view.total, offsets, slopes, sizes, given)
    if not advice:
        return sizes, advice
    worker = advice[0].worker
    if view.limits.minimum[worker] == 0 and not tried[worker]:
        everybody_else = np.arange(view.num_workers) != worker
        limits = Limits(
            limits.minimum * everybody_else, limits.cap * everybody_else, limits.granularity
        )
        sizes = split_affine(view.total, offsets, slopes, limits)
    return sizes, advice


_MOST_DOUBLINGS = 6


@dataclass(frozen=True, eq=False)
class Bench:
    """Who sits on the bench and for how long, one entry per worker."""

    idle: Ints
    """For how many iterations the worker has had no samples."""
    benchings: Ints
    """How often it was benched since it last had more than one granule."""
    probing: Bools
    """Whether it was given samples to see how fast it is now, and has not reported yet."""

    @classmethod
    def fresh(cls, num_workers: int) -> Bench:
        zeros = np.zeros(num_workers, dtype=np.int64)
        return cls(zeros, zeros, np.zeros(num_workers, dtype=bool))

    def observe(self, current: Ints, observed: Bools, granularity: int) -> Bench:
        """Return the bench at the next boundary; who sits on it shows in the sizes in force."""
        sits = current == 0
        return Bench(
            idle=np.where(sits, self.idle + 1, 0),
            benchings=np.where(
                current > granularity, 0, self.benchings + (sits & (self.idle == 0))
            ),
            probing=self.back(current) & ~observed,
        )

    def back(self, current: Ints) -> Bools:
        """Return which workers have samples again of which they have not reported yet."""
        back: Bools = (current > 0) & ((self.idle > 0) | self.probing)
        return back

    def due(self, current: Ints, patience: int) -> Bools:
        """Return which benched workers are to be tried again now."""
        doublings = np.clip(self.benchings - 1, 0, _MOST_DOUBLINGS)
        due: Bools = (current == 0) & (self.idle >= patience * 2**doublings)
        return due

    def bounds(
        self, current: Ints, due: Bools, lo: Floats, hi: Floats, granularity: int
    ) -> tuple[Floats, Floats]:
        """Return the highest and lowest sizes with benched workers held at 0 or at one granule."""
        tried = due | self.probing
        sitting = (current == 0) & ~tried
        fixed = np.where(sitting, 0.0, granularity)
        held = sitting | tried
        return np.where(held, fixed, hi), np.where(held, fixed, lo)
