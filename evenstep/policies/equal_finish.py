"""`equal_finish`: a filter per worker and the exact split; the default on accelerators.

A worker of size 0 (a benched one) has no times to report. The policy tries it again with one
granule after `patience` iterations, and doubles that number after each failed trial.
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
    makespan,
    remap_rows,
    require_whole,
    split_affine,
)
from evenstep.errors import InfeasibleLimits, InvalidSetting
from evenstep.policies.finish_filter import FinishFilter
from evenstep.policies.memory_model import MemoryModel
from evenstep.policies.removal import advise_removal


@dataclass(frozen=True, eq=False)
class EqualFinishState:
    """The knowledge about the workers; every array has one entry per worker."""

    filter: FinishFilter
    memory: MemoryModel
    bench: Bench


@dataclass(frozen=True)
class EqualFinish:
    """Size batches so that all workers finish together, from the times measured so far.

    Goes beyond Alg. 2: the sizes of all workers change at once, by as much as their slopes
    predict, but only if the predicted gain is larger than the noise.
    """

    least_gain: float = 0.01
    """Predicted gain below which no new sizes are adopted."""
    largest_move: float = 3.0
    """The largest factor by which a size changes at once."""
    patience: int = 32
    """Iterations after which a benched worker is tried again, doubled after each failed trial."""

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
        """Return the limits of one move: the linear model is only trusted near its last size."""
        given = view.limits
        most = np.minimum(state.memory.caps(), np.floor(self.largest_move * known.size))
        hi = np.maximum(known.size, most)
        lo = np.ceil(known.size / self.largest_move)
        hi, lo = state.bench.bounds(view.current, due, lo, hi, given.granularity)
        # Given limits hold at once, however far they are from the sizes seen so far.
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
        """Return the best sizes if they gain more than the noise, else the current ones."""
        if np.array_equal(best, view.current):
            return view.current, ""
        if not fits(view.current, view):
            return best, "limits"
        times = np.where(view.current > 0, known.times_at(view.current), 0.0)
        slowest = int(np.argmax(times))
        time = makespan(best, known.offsets(), known.slope)
        # The slowest of n seems slower than it is, by the expected maximum of n errors.
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
    """Return the sizes, with a worker benched if the job is faster without it and limits allow.

    A worker that is being tried again stays, as the knowledge about it is in doubt.
    """
    offsets, slopes = known.offsets(), known.slope
    # The limits of one move do not decide which worker is worth keeping.
    given = Limits(view.limits.minimum, limits.cap, limits.granularity)
    advice = advise_removal(view.total, offsets, slopes, sizes, given)
    if not advice:
        return sizes, advice
    worker = advice[0].worker
    if view.limits.minimum[worker] == 0 and not tried[worker]:
        others = np.arange(view.num_workers) != worker
        limits = Limits(limits.minimum * others, limits.cap * others, limits.granularity)
        sizes = split_affine(view.total, offsets, slopes, limits)
    return sizes, advice


_MOST_DOUBLINGS = 6


@dataclass(frozen=True, eq=False)
class Bench:
    """The benched workers: for how long, and how often; one entry per worker."""

    idle: Ints
    """Iterations for which the worker has had no samples."""
    benchings: Ints
    """How often it was benched since it last had more than one granule."""
    probing: Bools
    """Whether the worker is being tried again and has not reported yet."""

    @classmethod
    def fresh(cls, num_workers: int) -> Bench:
        zeros = np.zeros(num_workers, dtype=np.int64)
        return cls(zeros, zeros, np.zeros(num_workers, dtype=bool))

    def observe(self, current: Ints, observed: Bools, granularity: int) -> Bench:
        """Return the bench at the next boundary; a worker of current size 0 is benched."""
        benched = current == 0
        return Bench(
            idle=np.where(benched, self.idle + 1, 0),
            benchings=np.where(
                current > granularity, 0, self.benchings + (benched & (self.idle == 0))
            ),
            probing=self.back(current) & ~observed,
        )

    def back(self, current: Ints) -> Bools:
        """Return which workers have samples again but have not reported on them yet."""
        back: Bools = (current > 0) & ((self.idle > 0) | self.probing)
        return back

    def due(self, current: Ints, patience: int) -> Bools:
        """Return which benched workers must be tried again now."""
        doublings = np.clip(self.benchings - 1, 0, _MOST_DOUBLINGS)
        due: Bools = (current == 0) & (self.idle >= patience * 2**doublings)
        return due

    def bounds(
        self, current: Ints, due: Bools, lo: Floats, hi: Floats, granularity: int
    ) -> tuple[Floats, Floats]:
        """Return the highest and lowest sizes, fixed at 0 or one granule for benched workers."""
        tried = due | self.probing
        benched = (current == 0) & ~tried
        fixed = np.where(benched, 0.0, granularity)
        held = benched | tried
        return np.where(held, fixed, hi), np.where(held, fixed, lo)
