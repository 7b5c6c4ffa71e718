"""The estimator: takes the records of a run in their order, and returns its estimates.

It holds a few hundred iterations, evenly spread over the run, and the evidence on overheads, so
that memory does not grow with the length of the run. What was measured is added up over all
iterations. Equal records give equal figures, to the last bit: in a live view and from a file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evenstep.core import LARGEST_TOTAL, UNLIMITED, Bools, Floats, Ints, Limits, as_ints, even_sizes
from evenstep.errors import EvenstepError
from evenstep.estimates.estimates import Estimate, Estimates, Straggler, Window
from evenstep.estimates.overheads import FOLLOWING, SHARES, Overheads, median
from evenstep.policies import make_policy
from evenstep.runlog import Event, Header, IterationRow, Record, RunLog, Segment

_MOST_ROWS, _FEWEST_ROWS, _ENTRIES = 512, 32, 120_000
"""Iterations that are held, and their number times that of the workers."""
_AROUND = 4
"""Iterations before and after one whose median speed is its lasting speed."""
_DRAWS = 64
_BLOCK = 4
_MOST_OVERHEAD = 0.9
"""Largest overhead that is drawn, as a share of the fastest worker's time."""
_FEW_ROWS, _FEW_DRAWS = 48, 24
"""Iterations and draws from which the range of the optimum is computed."""
_CURVED = 0.015
"""The part of a difference from 1 by which the range of a gain is wider than that of the lines."""
_BEFORE_FOLLOWING = 2
"""First iterations in which sizes change because speeds differ, and not because they changed."""
_MOST_PLANS = 64
_STEPS = 40
"""Bisections that find the optimum: to one part in 10^12."""


@dataclass(frozen=True, eq=False)
class _Sums:
    """What was measured, added up."""

    iterations: int = 0
    time: float = 0.0
    worked: float = 0.0
    waited: float = 0.0

    def __sub__(self, other: _Sums) -> _Sums:
        return _Sums(
            self.iterations - other.iterations, self.time - other.time,
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
    before: _Sums
    """What was measured before it."""
    lasting: Floats | None = None
    """The lasting slowness of each worker over that of this iteration."""


class Estimator:
    """Follows one run; where workers join or leave, or the total changes, a new part begins."""

    def __init__(self, header: Header) -> None:
        self._follows = follows_speeds(header.policy)
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
        self._near: deque[_Held] = deque(maxlen=2 * _AROUND + 1)
        self._sums = _Sums()
        self._first = self._last = -1
        self._caps = np.full(n, UNLIMITED)
        self._shares = np.zeros(n)

    # A log may have implausible numbers; what comes of them counts as unknown.
    @np.errstate(all="ignore")
    def take(self, record: Record) -> None:
        """Take the next record of the run."""
        if isinstance(record, IterationRow):
            total = self._totals.get(record.plan, self.total)
            if (self._present, total) != (self.workers, self.total):
                self._begin(self._present, total)
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
        self._totals[number] = total
        if len(self._totals) > _MOST_PLANS:
            del self._totals[min(self._totals)]

    @np.errstate(all="ignore")
    def estimates(self, window: Window = "settled") -> Estimates | None:
        """Return the figures of a window; None if no time is known yet."""
        held = [*self._held, *map(self._with_lasting, self._pending())]
        if window == "settled":
            # Half of the iterations, not of the rows: of a long log, the end is read more densely.
            held = [one for one in held if 2 * one.iteration >= self._first + self._last]
        if not held:
            return None
        return _Window(self, window, held).estimates()

    @np.errstate(all="ignore")
    def compare(self, sizes: Ints, times: Floats) -> tuple[Floats, Floats]:
        """Return the iteration times of plain BSP and of the optimum in neighbouring iterations.

        They are of single iterations: a line in a picture, not a figure. NaN where unknown.
        """
        x = sizes.astype(np.float64)
        t = np.where((x > 0) & (times > 0) & np.isfinite(times), times, np.nan)
        if self._even is None:
            return np.full(len(x), np.nan), np.full(len(x), np.nan)
        if len(self.workers) == 1:
            return t[:, 0], t[:, 0]
        shares = self._shares
        even = self._even * (x.sum(axis=1, keepdims=True) / self.total)
        plain = np.fmax.reduce(_moved(t, x, even, self._even, shares), axis=1)
        lasting = np.ones_like(t)
        if not self._follows:
            slowness = _slowness(x, t, self._even, shares)
            padded = np.pad(slowness, ((_AROUND, _AROUND), (0, 0)), constant_values=np.nan)
            around = np.lib.stride_tricks.sliding_window_view(padded, 2 * _AROUND + 1, axis=0)
            lasting = np.nan_to_num(median(np.moveaxis(around, -1, 0)) / slowness, nan=1.0)
        best = self._best(x, t, lasting, shares)
        return plain, np.fmin(best, np.fmax.reduce(t, axis=1))

    def _row(self, row: IterationRow) -> None:
        if row.num_workers != len(self.workers):
            return
        known, times = _known(row)
        if not known.any():
            return
        if row.caps is not None:
            self._caps = np.maximum(row.caps, 1)
        sizes = row.batch_sizes.astype(np.float64)
        number = self._sums.iterations
        if not self._follows or number < _BEFORE_FOLLOWING:
            self._overheads.observe(sizes, times)
        self._near.append(_Held(number, row.iteration, sizes, times, self._sums))
        self._add(row, times)
        if number >= 4 and number & (number - 1) == 0:
            self._shares = self._posterior()[0] @ SHARES
        middle = number - _AROUND
        if middle >= 0 and middle % self._every == 0:
            self._hold(self._with_lasting(self._near[-1 - _AROUND]))

    def _add(self, row: IterationRow, times: Floats) -> None:
        if self._sums.iterations == 0:
            self._first = row.iteration
        self._last = row.iteration
        worked = float(np.nansum(times))
        if row.waiting is None or np.isnan(row.waiting).all():
            waited = float(np.nansum(np.fmax.reduce(times) - times))
        else:
            waited = float(np.nansum(row.waiting))
        sums = self._sums
        self._sums = _Sums(
            sums.iterations + 1, sums.time + row.iteration_time, sums.worked + worked,
            sums.waited + waited,
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
        around = [o for o in self._near if abs(o.number - one.number) <= _AROUND]
        if self._follows or self._even is None:
            # A policy that predicts speeds is compared with known ones.
            lasting = np.ones_like(one.times)
        else:
            own = _slowness(one.sizes, one.times, self._even, self._shares)
            each = [_slowness(o.sizes, o.times, self._even, self._shares) for o in around]
            lasting = np.nan_to_num(median(np.stack(each)) / own, nan=1.0)
        return _Held(one.number, one.iteration, one.sizes, one.times, one.before, lasting)

    def _posterior(self) -> tuple[Floats, Bools]:
        """Return the probabilities of the shares of overhead, and of which workers sizes tell."""
        n = len(self.workers)
        if self._even is None or self._follows:
            common = FOLLOWING if self._even is None else self._overheads.common(self._even)
            return np.tile(common, (n, 1)), np.zeros(n, bool)
        return self._overheads.posterior(self._even)

    def _best(self, sizes: Floats, times: Floats, lasting: Floats, shares: Floats) -> Floats:
        """Return the iteration times with the best sizes for the lasting speeds, with noise."""
        assert self._even is not None
        fixed = shares * self._even
        slope = 1 - shares
        now = times / (fixed + slope * sizes)
        if np.isnan(now).any():
            # A worker without a time is as slow as in the other iterations.
            now = np.where(np.isnan(now), median(now), now)
            now = np.where(np.isnan(now), median(now.T)[:, None], now)
        slowness = now * lasting
        totals = np.rint(sizes.sum(axis=1))
        most = np.minimum(self._caps, totals[:, None])
        least = np.minimum(1.0, most)
        low = np.zeros(len(sizes))
        high = (slowness * (fixed + slope * most)).max(axis=1)

        def at(level: Floats) -> Floats:
            fits = np.floor((level[:, None] / slowness - fixed) / slope * (1 + 1e-12))
            return np.clip(fits, least, most)

        for _ in range(_STEPS):
            middle = (low + high) / 2
            enough = at(middle).sum(axis=1) >= totals
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        best = at(high)
        # More may fit than there is to do; where limits leave too little room, there is no optimum.
        room = best.sum(axis=1) >= totals
        return np.where(room, (now * (fixed + slope * best)).max(axis=1), np.nan)


class _Window:
    """The iterations of a window as matrices."""

    def __init__(self, estimator: Estimator, window: Window, held: list[_Held]) -> None:
        self._of = estimator
        self._window = window
        self._held = held
        self._sizes = np.stack([one.sizes for one in held])
        self._times = np.stack([one.times for one in held])
        self._lasting = np.stack([one.lasting for one in held if one.lasting is not None])
        self._longest = np.fmax.reduce(self._times, axis=1)

    def estimates(self) -> Estimates:
        run, held = self._of, self._held
        sums = run._sums - held[0].before
        time = sums.time / sums.iterations
        waiting = sums.waited / (sums.waited + sums.worked)
        gain, possible, plain_times, shares, told = self._compared()
        optimum = Estimate(time / possible.value, time / possible.high, time / possible.low)
        return Estimates(
            window=self._window, first=held[0].iteration, last=run._last,
            num_iterations=sums.iterations, iteration_time=time, waiting_share=waiting,
            plain=gain * time, optimum=optimum, gain=gain,
            straggler=_straggler(run.workers, plain_times),
            workers=run.workers, plain_times=plain_times.tolist(), overheads=shares.tolist(),
            identified=told.tolist(),
        )  # fmt: skip

    def _compared(self) -> tuple[Estimate, Estimate, Floats, Floats, Bools]:
        """Return the gain, the possible gain, and each worker's time and overhead at even sizes.

        The last array says whether the overhead is known from the worker's own sizes.
        """
        run = self._of
        means = _mean(self._times)
        known = run._even is not None and not np.isnan(means).any()
        if run._even is None or not known or len(run.workers) == 1:
            # A single worker is its own optimum. A total that cannot be split has none, and what a
            # worker without a batch would take is unknown.
            one = Estimate.exactly(1.0 if known else np.nan)
            return one, one, means, np.zeros_like(means), np.zeros(len(means), bool)
        posterior, told = run._posterior()
        shares = np.where(told, posterior @ SHARES, _typical(posterior))
        even = run._even * (self._sizes.sum(axis=1, keepdims=True) / run.total)
        rng = np.random.default_rng(0)
        calm = self._times * self._lasting
        plain_times = _mean(_moved(calm, self._sizes, even, run._even, shares))
        drawn = [_draw(posterior, run._follows, rng) for _ in range(_DRAWS)]
        if not run._follows:
            # Where sizes tell nothing, workers may as well have the same overhead in seconds.
            for i in range(0, _DRAWS, 2):
                seconds = rng.uniform(0, _MOST_OVERHEAD) * plain_times.min()
                drawn[i] = np.where(told, drawn[i], seconds / plain_times)
        plains = [
            np.fmax.reduce(_moved(self._times, self._sizes, even, run._even, one), axis=1)
            for one in drawn
        ]
        value = float(np.median([plain.sum() for plain in plains]) / self._longest.sum())
        draws = []
        for plain in plains:
            # Other iterations of the same run would have had other noise.
            rows = _resampled(len(plain), rng)
            draws.append(plain[rows].sum() / self._longest[rows].sum())
        gain = _widened(Estimate.of(np.array(draws), value))
        possible = self._possible(shares, drawn[:_FEW_DRAWS])
        return gain, possible, plain_times, shares, told

    def _possible(self, shares: Floats, drawn: list[Floats]) -> Estimate:
        """Return how many times faster the best sizes would have been."""
        value = self._gain_of_best(slice(None), shares)
        some = slice(None, None, max(1, len(self._held) // _FEW_ROWS))
        typical = self._gain_of_best(some, shares)
        draws = [value * self._gain_of_best(some, one) / typical for one in drawn]
        return Estimate.of(np.maximum(draws, 1.0), value)

    def _gain_of_best(self, rows: slice, shares: Floats) -> float:
        best = self._of._best(self._sizes[rows], self._times[rows], self._lasting[rows], shares)
        known = np.isfinite(best)
        if not known.any():
            return 1.0
        return max(1.0, float(self._longest[rows][known].sum() / best[known].sum()))


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


def _known(row: IterationRow) -> tuple[Bools, Floats]:
    known = (row.batch_sizes > 0) & (row.times > 0) & np.isfinite(row.times)
    return known, np.where(known, row.times, np.nan)


def _slowness(sizes: Floats, times: Floats, even: Floats, shares: Floats) -> Floats:
    slowness: Floats = times / (shares * even + (1 - shares) * sizes)
    return slowness


def _moved(times: Floats, sizes: Floats, to: Floats, even: Floats, shares: Floats) -> Floats:
    """Return measured times, with their noise, moved to other sizes."""
    fixed = shares * even
    moved: Floats = times * ((fixed + (1 - shares) * to) / (fixed + (1 - shares) * sizes))
    return moved


def _mean(values: Floats) -> Floats:
    """Return the mean of the known values of each column, NaN where there is none."""
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    total = np.sum(values, axis=0, where=known)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _draw(posterior: Floats, together: bool, rng: np.random.Generator) -> Floats:
    """Draw a share for each worker, or one for all."""
    uniform = rng.random((1 if together else len(posterior), 1))
    at = (posterior.cumsum(axis=1) > uniform).argmax(axis=1)
    jitter = rng.uniform(-0.01, 0.01, len(posterior))
    drawn = SHARES[at]
    shares: Floats = np.clip(drawn + np.where(drawn > 0, jitter, 0.0), 0.0, 0.97)
    return shares


def _resampled(count: int, rng: np.random.Generator) -> Ints:
    """Draw as many iterations again, in blocks of neighbours, which are alike."""
    block = min(_BLOCK, count)
    starts = rng.integers(0, count - block + 1, -(-count // block))
    rows: Ints = (starts[:, None] + np.arange(block)).ravel()[:count]
    return rows


def _typical(posterior: Floats) -> Floats:
    """Return the median share of each worker."""
    shares: Floats = SHARES[(posterior.cumsum(axis=1) >= 0.5).argmax(axis=1)]
    return shares


def _widened(gain: Estimate) -> Estimate:
    """Return the gain with a range that allows for curves that are not straight."""
    spread = _CURVED * abs(gain.value - 1)
    return Estimate(gain.value, gain.low - spread, gain.high + spread)


def _straggler(workers: tuple[str, ...], plain_times: Floats) -> Straggler | None:
    if len(workers) < 2 or np.isnan(plain_times).all():
        return None
    slowest = int(np.nanargmax(plain_times))
    slowdown = float(plain_times[slowest] / np.nanmedian(plain_times))
    return Straggler(workers[slowest], slowdown)
