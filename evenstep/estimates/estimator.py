"""The estimator: takes the records of a run in their order, and returns its estimates.

It holds a few hundred iterations, evenly spread over the run, and the evidence on overheads, so
that memory does not grow with the length of the run. What was measured is added up over all
iterations. Equal records give equal figures, to the last bit: in a live view and from a file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from evenstep.core import LARGEST_TOTAL, UNLIMITED, Bools, Floats, Ints, Limits, as_ints, even_sizes
from evenstep.core.arrays import median
from evenstep.core.report import LONGEST, SHORTEST
from evenstep.errors import EvenstepError
from evenstep.estimates.comparing import AROUND, Comparison, Iterations, compare
from evenstep.estimates.estimates import Estimates, Straggler, Window
from evenstep.estimates.overheads import FOLLOWING, SHARES, Overheads
from evenstep.policies import make_policy
from evenstep.runlog import Event, Header, IterationRow, Record, RunLog, Segment

_MOST_ROWS, _FEWEST_ROWS, _ENTRIES = 512, 32, 120_000
"""Iterations that are held, and their number times that of the workers."""
_FEWEST = 6
"""Iterations of a run before which it is not compared with other sizes."""
_MOST_PLANS = 64
_NEIGHBOURS = 8
"""Iterations that a log may leave out between two that are still taken for neighbours."""


@dataclass(frozen=True, eq=False)
class _Sums:
    """What was measured, added up; of iterations that a log left out, the next one stands for."""

    rows: int = 0
    iterations: float = 0.0
    time: float = 0.0
    worked: float = 0.0
    waited: float = 0.0

    def __sub__(self, other: _Sums) -> _Sums:
        return _Sums(
            self.rows - other.rows, self.iterations - other.iterations, self.time - other.time,
            self.worked - other.worked, self.waited - other.waited,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Held:
    """An iteration that is held."""

    number: int
    """Iterations of this part of the run before it."""
    iteration: int
    sizes: Floats
    times: Floats
    weight: float
    """How many iterations it stands for, times the batches that it accumulated."""
    whole: bool
    """Whether its samples are those of whole batches, with a known time of each worker that had
    some."""
    before: _Sums
    """What was measured before it."""
    lasting: Floats | None = None
    """The lasting slowness of each worker over that of this iteration."""


class Estimator:
    """Follows one run; where workers join or leave, or the total changes, a new part begins."""

    def __init__(self, header: Header) -> None:
        self._may_follow = follows_speeds(header.policy)
        self._follows = False
        """Whether sizes have begun to follow predicted speeds."""
        self._granularity = _whole(header.settings.get("granularity", 1))
        self._present = tuple(header.workers)
        """The workers of the next iteration."""
        self._totals: dict[int, int] = {}
        """The totals of the last plans, by number."""
        self._overheads = Overheads(0)
        self.workers: tuple[str, ...] = ()
        self._begin(self._present, header.total)

    def _begin(self, workers: tuple[str, ...], total: int) -> None:
        position = {name: i for i, name in enumerate(self.workers)}
        keep = as_ints([position.get(name, -1) for name in workers])
        self._overheads = self._overheads.remapped(keep)
        self.workers = workers
        self.total = total
        n = len(workers)
        self._even = _even(total, n, self._granularity)
        self._capacity = max(_FEWEST_ROWS, min(_MOST_ROWS, _ENTRIES // max(1, n)))
        self._every = 1
        self._held: list[_Held] = []
        self._near: deque[_Held] = deque(maxlen=2 * AROUND + 1)
        self._sums = _Sums()
        self._first = self._last = -1
        self._any_whole = False
        self._before = np.zeros(0)
        """The sizes of the whole iteration before."""
        self._caps = np.full(n, UNLIMITED)
        self._shares = np.zeros(n)

    # A log may have implausible numbers; what comes of them counts as unknown.
    @np.errstate(all="ignore")
    def take(self, record: Record) -> None:
        """Take the next record of the run."""
        if isinstance(record, IterationRow):
            self._row(record)
        elif isinstance(record, Event):
            if record.workers is not None:
                self.members(tuple(record.workers))
            elif record.kind == "plan" and record.batch_sizes is not None:
                self.plan(record.plan or 0, sum(record.batch_sizes))

    def members(self, workers: tuple[str, ...]) -> None:
        """Take the workers of the iterations from here on."""
        self._present = workers

    def plan(self, number: int, total: int) -> None:
        """Take the total of a plan."""
        self._totals.pop(number, None)
        self._totals[number] = total
        if len(self._totals) > _MOST_PLANS:
            del self._totals[next(iter(self._totals))]

    @np.errstate(all="ignore")
    def estimates(self, window: Window = "settled") -> Estimates | None:
        """Return the figures of a window; None if no time is known yet."""
        held = [*self._held, *map(self._with_lasting, self._pending())]
        if window == "settled":
            # Half of the iterations, not of the rows: of a long log, the end is read more densely.
            half = [one for one in held if 2 * one.iteration >= self._first + self._last]
            held = half or held[-1:]
        if not held:
            return None
        sums = self._sums - held[0].before
        time = sums.time / sums.iterations
        found = self._compared(held, window)
        return Estimates(
            window=window,
            first=held[0].iteration,
            last=self._last,
            num_iterations=sums.rows,
            iteration_time=time,
            waiting_share=sums.waited / (sums.waited + sums.worked),
            plain=found.gain * time,
            optimum=found.possible.inverse(time),
            gain=found.gain,
            straggler=_straggler(self.workers, found.plain_times),
            workers=self.workers,
            plain_sizes=[] if self._even is None else [int(size) for size in self._even],
            plain_times=found.plain_times.tolist(),
            overheads=found.shares.tolist(),
            identified=found.told.tolist(),
        )

    def _compared(self, held: list[_Held], window: Window) -> Comparison:
        held = [one for one in held if one.whole] or held
        times = np.stack([one.times for one in held])
        if len(self.workers) == 1 and self._even is not None:
            return Comparison.without(times, 1.0)
        early = window == "settled" and self._sums.rows < _FEWEST
        if self._even is None or early or np.isnan(times).all(axis=0).any():
            # A total that cannot be split, too few iterations, or a worker that had no batch.
            return Comparison.without(np.full_like(times, np.nan), np.nan)
        sizes, lasting = (np.stack([getattr(one, n) for one in held]) for n in ("sizes", "lasting"))
        weights = np.array([one.weight for one in held])
        run = self._iterations(self._even, sizes, times, lasting, weights)
        return compare(run, *self._posterior(), self._follows)

    @np.errstate(all="ignore")
    def compare(self, sizes: Ints, times: Floats) -> tuple[Floats, Floats]:
        """Return the iteration times of plain BSP and of the optimum in neighbouring iterations.

        They are of single iterations: a line in a picture, not a figure. NaN where unknown.
        """
        x = sizes.astype(np.float64)
        t = np.where((x > 0) & (times >= SHORTEST) & (times <= LONGEST), times, np.nan)
        if self._even is None:
            return np.full(len(x), np.nan), np.full(len(x), np.nan)
        if len(self.workers) == 1:
            return t[:, 0], t[:, 0]
        lasting = np.ones_like(t)
        if not self._follows:
            slowness = self._slowness(x, t)
            padded = np.pad(slowness, ((AROUND, AROUND), (0, 0)), constant_values=np.nan)
            around = np.lib.stride_tricks.sliding_window_view(padded, 2 * AROUND + 1, axis=0)
            lasting = np.nan_to_num(median(np.moveaxis(around, -1, 0)) / slowness, nan=1.0)
        run = self._iterations(self._even, x, t, lasting, np.ones(len(x)))
        plain: Floats = np.fmax.reduce(run.at_even(self._shares), axis=1)
        return plain, np.fmin(run.best(self._shares), run.longest)

    def _iterations(
        self, even: Floats, sizes: Floats, times: Floats, lasting: Floats, weights: Floats
    ) -> Iterations:
        limits = self._caps, weights, self._granularity
        return Iterations(sizes, times, lasting, even, self.total, *limits)

    def _row(self, row: IterationRow) -> None:
        known, times = _known(row)
        if row.num_workers != len(self._present) or not known.any():
            return
        total = self._totals.get(row.plan, self.total)
        is_other = (self._present, total) != (self.workers, self.total)
        if is_other or row.iteration <= self._last:
            # Other workers, another total, or a training that went back to a checkpoint.
            self._begin(self._present, total)
        self._caps = (
            np.full(row.num_workers, UNLIMITED) if row.caps is None else np.maximum(row.caps, 1)
        )
        gap = 1 if self._last < 0 else row.iteration - self._last
        # An iteration may accumulate several batches of the total.
        batches = max(1, round(float(row.batch_sizes.sum()) / self.total)) if self.total else 1
        sizes = row.batch_sizes / batches
        whole = bool(sizes.sum() == self.total and (known | (row.batch_sizes == 0)).all())
        number = self._sums.rows
        self._learn(sizes, times / batches, whole, gap)
        one = _Held(
            number, row.iteration, sizes, times / batches, float(gap * batches), whole, self._sums
        )
        self._near.append(one)
        self._add(row, times, gap)
        if number >= 4 and number & (number - 1) == 0 and self._even is not None:
            self._shares = self._posterior()[0] @ SHARES
        middle = number - AROUND
        if middle >= 0 and middle % self._every == 0:
            self._hold(self._with_lasting(self._near[-1 - AROUND]))

    def _learn(self, sizes: Floats, times: Floats, whole: bool, gap: int) -> None:
        """Learn overheads from whole iterations, or from all if there are no whole ones."""
        self._any_whole |= whole
        if self._follows or whole != self._any_whole:
            return
        if gap > _NEIGHBOURS:
            self._overheads.interrupt()
        self._overheads.observe(sizes, times)
        # The first change is because speeds differ, and not because they changed.
        before, self._before = self._before, sizes
        changed = len(before) == len(sizes) and not np.allclose(sizes, before, atol=1.0)
        self._follows = self._may_follow and changed

    def _add(self, row: IterationRow, times: Floats, gap: int) -> None:
        if self._sums.rows == 0:
            self._first = row.iteration
        self._last = row.iteration
        longest = np.fmax.reduce(times)
        waiting = longest - times
        if row.waiting is not None and not np.isnan(row.waiting).all():
            waiting = np.clip(row.waiting, 0.0, LONGEST)
            longest = np.fmax.reduce(times + np.nan_to_num(waiting))
        sums = self._sums
        self._sums = _Sums(
            sums.rows + 1, sums.iterations + gap, sums.time + gap * float(longest),
            sums.worked + gap * _sum(times), sums.waited + gap * _sum(waiting),
        )  # fmt: skip

    def _hold(self, one: _Held) -> None:
        self._held.append(one)
        if len(self._held) > self._capacity:
            self._every *= 2
            self._held = [one for one in self._held if one.number % self._every == 0]

    def _pending(self) -> list[_Held]:
        """Return the newest iterations, which would be held once those after them are known."""
        first = self._held[-1].number if self._held else -1
        return [o for o in self._near if o.number > first and o.number % self._every == 0]

    def _with_lasting(self, one: _Held) -> _Held:
        """Find the lasting speeds around an iteration."""
        around = [o for o in self._near if abs(o.number - one.number) <= AROUND]
        if self._follows or self._even is None:
            # A policy that predicts speeds is compared with known ones.
            lasting = np.ones_like(one.times)
        else:
            own = self._slowness(one.sizes, one.times)
            each = [self._slowness(o.sizes, o.times) for o in around]
            lasting = np.nan_to_num(median(np.stack(each)) / own, nan=1.0)
        return replace(one, lasting=lasting)

    def _posterior(self) -> tuple[Floats, Bools]:
        """Return the probabilities of the shares of overhead, and of which workers sizes tell."""
        n = len(self.workers)
        if self._even is None or self._follows:
            common = FOLLOWING if self._even is None else self._overheads.common(self._even)
            return np.tile(common, (n, 1)), np.zeros(n, bool)
        return self._overheads.posterior(self._even)

    def _slowness(self, sizes: Floats, times: Floats) -> Floats:
        assert self._even is not None
        slowness: Floats = times / (self._shares * self._even + (1 - self._shares) * sizes)
        return slowness


def follow(run_log: RunLog) -> Iterator[tuple[Segment, Estimator]]:
    """Yield the parts of a run log, each with the estimator as it is at the end of the part."""
    estimator = Estimator(run_log.header)
    plans = deque(run_log.events_of("plan"))
    for segment, _ in run_log.parts:
        estimator.members(segment.workers)
        for row in segment.rows():
            while plans and (plans[0].plan or 0) <= row.plan:
                estimator.take(plans.popleft())
            estimator.take(row)
        yield segment, estimator


def estimates_of(run_log: RunLog, window: Window = "settled") -> Estimates | None:
    """Return the estimates of a run log; None if no time is known."""
    last = deque(follow(run_log), maxlen=1)
    return last[0][1].estimates(window) if last else None


def follows_speeds(policy: str) -> bool:
    """Whether the sizes of a run with this policy come from predicted speeds.

    >>> follows_speeds("proportional"), follows_speeds("equal_finish"), follows_speeds("their own")
    (True, False, False)
    """
    try:
        return make_policy(policy).uses_speeds
    except EvenstepError:
        return False


def _even(total: int, num_workers: int, granularity: int) -> Floats | None:
    """Return the sizes of plain BSP; None where there is not a sample for each worker."""
    if not num_workers * granularity <= total <= LARGEST_TOTAL or total % granularity:
        return None
    limits = Limits.of(num_workers, granularity=granularity)
    return even_sizes(total, limits).astype(np.float64)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value >= 1 else 1


def _sum(values: Floats) -> float:
    """Return the sum of the known values."""
    total = float(values.sum())
    return float(np.nansum(values)) if np.isnan(total) else total


def _known(row: IterationRow) -> tuple[Bools, Floats]:
    known = (row.batch_sizes > 0) & (row.times >= SHORTEST) & (row.times <= LONGEST)
    return known, np.where(known, row.times, np.nan)


def _straggler(workers: tuple[str, ...], plain_times: Floats) -> Straggler | None:
    if len(workers) < 2 or np.isnan(plain_times).all():
        return None
    slowest = int(np.nanargmax(plain_times))
    slowdown = float(plain_times[slowest] / np.nanmedian(plain_times))
    return Straggler(workers[slowest], slowdown)
