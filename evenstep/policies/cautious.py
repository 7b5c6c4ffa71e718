"""`cautious`: Alg. 1, held back by what the measured times say about it; the default on CPUs.

`proportional` follows its predictions wherever they point. On equal workers with short iterations
they point at noise; and as part of an iteration does not depend on the batch size, a worker with a
smaller batch also seems slower, so that nothing leads the sizes back. Two checks hold it back.
Before a move, the moves proposed so far must have been right: each proposal is compared with the
sizes held in the times measured afterwards. After it, short blocks of iterations at even sizes must
take longer: otherwise sizes go back to even.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from evenstep.core import (
    Decision,
    Floats,
    Ints,
    Limits,
    View,
    as_ints,
    even_sizes,
    fits,
    predict_times,
    remap_rows,
)
from evenstep.errors import InvalidSetting
from evenstep.policies.proportional import Proportional

COMPARING = "comparing with even sizes"
"""The reason of a plan with even sizes that is only there to be measured."""
_RATE = 0.05
"""How fast the record of moves forgets."""
_FIRST_ERROR = 0.1
"""Error of a predicted gain before anything was measured: first moves have to gain more."""
_SURPRISE = 3.0
"""A gain of this many errors is believed even if the moves before it were wrong."""
_FIRST_MOVE, _LARGE_MOVE = 1.2, 3.0
"""Until a gain over even sizes was measured, sizes stay within the first factor of even ones, or
within the second where the predicted gain was twice larger than what errors can feign."""
_BLOCK = 16
"""Iterations of a block at even sizes, and of the average that it is compared with."""
_FIRST_WAIT = 4 * _BLOCK
_FIRST_SPREAD = 0.3
"""Uncertainty of the gain over even sizes before it was measured."""
_DRIFT = 0.02
"""What a gain may change by from one block to the next, in addition to what is predicted."""
_PROBED = 0.05
"""Sizes closer to even than this part of them are not checked: there is nothing to lose."""
_MOST_PATIENCE = 4096


@dataclass(frozen=True, eq=False)
class Moves:
    """How the moves proposed so far would have done, and the newest one, still to be judged."""

    held: Ints
    """The sizes in force when the newest proposal was made; 0 before there is one."""
    proposed: Ints
    gain: float = 0.0
    """The iteration time with the former over that with the latter, by predicted speeds, less 1."""
    square: float = _FIRST_ERROR**2
    """Mean square of predicted gains."""
    product: float = 0.0
    """Mean product of predicted and measured gains."""
    error: float = _FIRST_ERROR**2
    """Mean square of their difference."""
    large: bool = False
    """Whether the newest predicted gain was larger than what errors can feign."""

    def judged(self, view: View) -> Moves:
        """Return the record with the newest proposal compared with the sizes held."""
        reports = view.reports
        if not self.proposed.any() or not reports.observed.all():
            return self
        per_sample = reports.times / reports.batch_sizes
        measured = _ratio(_longest(per_sample * self.held), _longest(per_sample * self.proposed))
        return replace(
            self,
            square=_follow(self.square, self.gain * self.gain, _RATE),
            product=_follow(self.product, self.gain * measured, _RATE),
            error=_follow(self.error, (self.gain - measured) ** 2, _RATE),
        )

    def is_large(self, gain: float) -> bool:
        """Whether a predicted gain is larger than what errors like those so far can feign."""
        return gain > _SURPRISE * math.sqrt(self.error)

    def expected(self, gain: float) -> float:
        """Return what a predicted gain has been worth so far."""
        return gain if self.is_large(gain) else gain * max(self.product, 0.0) / self.square


@dataclass(frozen=True, eq=False)
class Trial:
    """The gain over even sizes, measured in blocks of iterations."""

    before: Ints
    """The sizes before the block at even sizes, 0 where there is none in progress."""
    left: int = 0
    """Iterations at even sizes still to be measured."""
    wait: int = _FIRST_WAIT
    """Iterations until the next block."""
    patience: int = _FIRST_WAIT
    """Iterations in which the doubt after a failed trial halves; doubled by each."""
    doubt: float = 0.0
    """Gain that predictions have to exceed before sizes leave even ones again."""
    gain: float = 0.0
    spread: float = _FIRST_SPREAD
    """Standard deviation of the gain."""
    predicted: float = 0.0
    """The gain over even sizes by predicted speeds, when the block began."""
    last: float = 0.0
    """The same of the block before it."""
    even: float = 0.0
    """Time per sample in the block at even sizes so far, the sum."""
    uneven: float = 0.0
    """Time per sample with the other sizes, the recent mean."""
    seen: int = 0
    """Iterations in that mean, up to a block."""
    noise: float = _FIRST_ERROR**2
    """Relative variance of the time per sample."""

    @property
    def is_proven(self) -> bool:
        """Whether a gain was measured that noise is unlikely to feign."""
        return self.gain > 2 * self.spread


@dataclass(frozen=True, eq=False)
class CautiousState:
    moves: Moves
    trial: Trial


@dataclass(frozen=True)
class Cautious:
    """Sizes in proportion to the predicted speeds, where that has been seen to gain."""

    least_gain: float = 0.01
    """Expected gain below which no new sizes are adopted."""
    cost: float = 0.0025
    """The part of the time that blocks at even sizes may cost."""

    uses_speeds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.least_gain >= 0:
            raise InvalidSetting(f"least_gain of cautious must be >= 0, got {self.least_gain}")
        if not 0 < self.cost < 1:
            raise InvalidSetting(f"cost of cautious must be > 0 and < 1, got {self.cost}")

    def init(self, num_workers: int) -> CautiousState:
        none = np.zeros(num_workers, dtype=np.int64)
        return CautiousState(Moves(none, none), Trial(none))

    def remap(self, state: CautiousState, keep: Ints) -> CautiousState:
        return remap_rows(state, self.init(len(keep)), keep)

    def plan(self, view: View, state: CautiousState) -> tuple[Decision, CautiousState]:
        even = even_sizes(view.total, view.limits)
        moves = state.moves.judged(view)
        trial = self._measured(view, even, state.trial)
        best, _ = Proportional().plan(view, None)
        gain = _gain(view, view.current, best.sizes)
        large = moves.is_large(gain)
        if not trial.is_proven and fits(view.current, view):
            best, _ = Proportional().plan(_nearby(view, even, large and moves.large), None)
            gain = _gain(view, view.current, best.sizes)
        sizes, reason, trial = self._choose(view, even, best.sizes, moves.expected(gain), trial)
        moves = replace(moves, held=view.current, proposed=best.sizes, gain=gain, large=large)
        times = predict_times(view, sizes)
        decision = replace(best, sizes=sizes, reason=reason, predicted_times=times)
        return decision, CautiousState(moves, trial)

    def _choose(
        self, view: View, even: Ints, best: Ints, gain: float, trial: Trial
    ) -> tuple[Ints, str, Trial]:
        """Return the sizes, the reason where they are new, and the next state of the trial."""
        if not fits(view.current, view):
            return best, "limits", trial
        if trial.left and view.observed.all():
            return even, COMPARING, trial
        if trial.before.any():
            # Where a worker stops reporting its times, nothing can be compared.
            kept = trial.gain > trial.spread or trial.left > 0
            before, trial = trial.before, self._concluded(trial, kept)
            if kept and fits(before, view):
                return before, "slower at even sizes", trial
            return even, "", trial
        is_even = np.array_equal(view.current, even)
        trial = _waited(trial, is_even)
        if not is_even and trial.wait <= 0:
            if _is_near(view.current, even, _PROBED):
                return self._weigh(view, best, gain, trial)
            return even, COMPARING, replace(
                trial, before=view.current, left=_BLOCK, even=0.0,
                predicted=_gain(view, even, view.current),
            )  # fmt: skip
        return self._weigh(view, best, gain - (trial.doubt if is_even else 0.0), trial)

    def _weigh(self, view: View, best: Ints, gain: float, trial: Trial) -> tuple[Ints, str, Trial]:
        if gain > self.least_gain:
            return best, "predicted speeds", trial
        return view.current, "", trial

    def _measured(self, view: View, even: Ints, trial: Trial) -> Trial:
        """Return the trial with the time of the last iteration."""
        reports = view.reports
        if not reports.observed.all():
            return trial
        samples = int(reports.batch_sizes.sum())
        time = _longest(reports.times) / samples
        was_even = bool(np.all(np.abs(reports.batch_sizes * view.total - even * samples) < samples))
        if not was_even:
            # Spikes count, but no single one decides.
            bounded = min(time, 3 * trial.uneven) if trial.seen else time
            seen = min(trial.seen + 1, _BLOCK)
            noise = trial.noise
            if trial.seen:
                noise = _follow(noise, (bounded / trial.uneven - 1) ** 2, _RATE)
            return replace(
                trial, uneven=_follow(trial.uneven, bounded, 1 / seen), seen=seen, noise=noise
            )
        if not trial.left:
            return trial
        bounded = min(time, 3 * trial.uneven) if trial.seen else time
        trial = replace(trial, even=trial.even + bounded, left=trial.left - 1)
        return trial if trial.left or not trial.seen else _compared(trial)

    def _concluded(self, trial: Trial, kept: bool) -> Trial:
        """Return the trial after a block: when to repeat it, or how much to doubt predictions."""
        none = np.zeros_like(trial.before)
        if kept:
            wait = int(_BLOCK * max(trial.gain - 2 * trial.spread, 0.0) / self.cost)
            return replace(
                trial, before=none, left=0, wait=max(wait, _BLOCK), doubt=0.0, patience=_FIRST_WAIT
            )
        return replace(
            trial, before=none, wait=_FIRST_WAIT, seen=0,
            doubt=2 * max(trial.predicted, self.least_gain),
            patience=min(2 * trial.patience, _MOST_PATIENCE),
        )  # fmt: skip


def _waited(trial: Trial, is_even: bool) -> Trial:
    if is_even:
        return replace(trial, doubt=trial.doubt * (1 - 1 / (1.5 * trial.patience)))
    return replace(trial, wait=trial.wait - 1)


def _compared(trial: Trial) -> Trial:
    """Return the trial with the gain of a complete block: a Kalman filter of one number."""
    measured = _ratio(trial.even / _BLOCK, trial.uneven)
    variance = trial.noise * (1 / _BLOCK + 1 / trial.seen)
    before = trial.spread**2 + _DRIFT**2 + (trial.predicted - trial.last) ** 2
    weight = before / (before + variance)
    return replace(
        trial,
        gain=trial.gain + weight * (measured - trial.gain),
        spread=math.sqrt(before * (1 - weight)),
        last=trial.predicted,
    )


def _is_near(sizes: Ints, even: Ints, part: float) -> bool:
    return bool(np.all(np.abs(sizes - even) <= part * even))


def _nearby(view: View, even: Ints, confirmed: bool) -> View:
    """Return the view with limits for sizes before a gain over even ones was measured."""
    wide = confirmed or not _is_near(view.current, even, _FIRST_MOVE - 1)
    factor = _LARGE_MOVE if wide else _FIRST_MOVE
    given = view.limits
    most = np.maximum(as_ints(np.floor(even * factor)), given.granularity)
    limits = Limits(
        np.maximum(given.minimum, as_ints(np.ceil(even / factor))),
        np.minimum(given.cap, most),
        given.granularity,
    )
    return replace(view, limits=limits)


def _gain(view: View, sizes: Ints, others: Ints) -> float:
    """Return how much longer an iteration takes than with other sizes, by predicted speeds."""
    return _ratio(_longest(predict_times(view, sizes)), _longest(predict_times(view, others)))


def _longest(times: Floats) -> float:
    return float(times.max())


def _ratio(time: float, other: float) -> float:
    """Return how much longer a time is than the other, as a part of the other; at most 10."""
    return min(time / other - 1, 10.0) if other > 0 else 0.0


def _follow(mean: float, value: float, rate: float) -> float:
    return mean + rate * (value - mean)
