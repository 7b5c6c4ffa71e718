"""Comparing iterations as they were with other sizes in the same conditions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evenstep.core import Bools, Floats, Ints
from evenstep.core.arrays import mean, median
from evenstep.estimates.estimates import Estimate
from evenstep.estimates.overheads import SHARES

AROUND = 4
"""Iterations before and after one whose median speed is its lasting speed."""
_DRAWS = 64
_BLOCK = 4
"""Neighbouring iterations that are drawn together."""
_MOST_OVERHEAD = 0.9
"""Largest overhead that is drawn, as a share of the fastest worker's time."""
_FEW_ROWS, _FEW_DRAWS = 48, 24
"""Iterations and draws from which the range of the optimum is computed."""
_CURVED = 0.015
"""The part of a difference from 1 by which the range of a gain is wider than that of the lines."""
_STEPS = 40
"""Bisections that find the optimum: to one part in 10^12."""


@dataclass(frozen=True, eq=False)
class Iterations:
    """Some iterations as matrices of (iterations, workers); a time is NaN where it is unknown."""

    sizes: Floats
    times: Floats
    lasting: Floats
    """The lasting slowness of each worker over that of the iteration."""
    even: Floats
    """The sizes of plain BSP."""
    total: int
    caps: Ints
    weights: Floats
    """How many iterations each of them stands for, times the batches that it accumulated."""
    granularity: int = 1

    @property
    def longest(self) -> Floats:
        """The time of each iteration."""
        longest: Floats = np.fmax.reduce(self.times, axis=1)
        return longest

    def at_even(self, shares: Floats) -> Floats:
        """Return the times, with their noise, moved to the sizes of plain BSP.

        `shares` are the shares of overhead. A worker without a batch would take as long as its
        slowness in the other iterations says.
        """
        even = self.even * (self.sizes.sum(axis=1, keepdims=True) / self.total)
        work = self._work(even, shares)
        moved: Floats = self.times * (work / self._work(self.sizes, shares))
        if np.isnan(moved).any():
            moved = np.where(np.isnan(moved), self._slowness(shares) * work, moved)
        return moved

    def best(self, shares: Floats) -> Floats:
        """Return the iteration times, with noise, of the best sizes for the lasting speeds."""
        fixed, slope = shares * self.even, 1 - shares
        now = self._slowness(shares)
        slowness = now * self.lasting
        totals = np.rint(self.sizes.sum(axis=1))
        most = np.minimum(self.caps, totals[:, None])
        least = np.minimum(self.granularity, most)
        low = np.zeros(len(now))
        high = (slowness * self._work(most, shares)).max(axis=1)

        def at(level: Floats) -> Floats:
            fits = (level[:, None] / slowness - fixed) / slope * (1 + 1e-12)
            fits = np.floor(fits / self.granularity) * self.granularity
            return np.clip(fits, least, most)

        for _ in range(_STEPS):
            middle = (low + high) / 2
            enough = at(middle).sum(axis=1) >= totals
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        best = at(high)
        # More may fit than there is to do; where limits leave too little room, there is no optimum.
        room = best.sum(axis=1) >= totals
        return np.where(room, (now * self._work(best, shares)).max(axis=1), np.nan)

    def some(self, rows: slice) -> Iterations:
        """Return some of the iterations."""
        return replace(
            self, sizes=self.sizes[rows], times=self.times[rows], lasting=self.lasting[rows],
            weights=self.weights[rows],
        )  # fmt: skip

    def _slowness(self, shares: Floats) -> Floats:
        """Return the slowness of each worker; without a time it is as in the other iterations."""
        now = self.times / self._work(self.sizes, shares)
        if np.isnan(now).any():
            now = np.where(np.isnan(now), median(now), now)
            now = np.where(np.isnan(now), median(now.T)[:, None], now)
        return now

    def _work(self, sizes: Floats | Ints, shares: Floats) -> Floats:
        work: Floats = shares * self.even + (1 - shares) * sizes
        return work


@dataclass(frozen=True, eq=False)
class Comparison:
    """What other sizes would have brought; arrays have one entry per worker."""

    gain: Estimate
    """The time of plain BSP over that of the iterations."""
    possible: Estimate
    """The time of the iterations over that of the optimum."""
    plain_times: Floats
    """Mean times with the sizes of plain BSP, without spikes."""
    shares: Floats
    """Shares of overhead."""
    told: Bools
    """Whether a worker's own changes of size tell its share."""

    @classmethod
    def without(cls, times: Floats, ratio: float) -> Comparison:
        """Make the comparison of iterations that cannot have other sizes, or not known ones."""
        means = mean(times)
        one = Estimate.exactly(ratio)
        return cls(one, one, means, np.zeros_like(means), np.zeros(len(means), bool))


def compare(run: Iterations, posterior: Floats, told: Bools, together: bool) -> Comparison:
    """Compare iterations with plain BSP and the optimum.

    `posterior` has the probability of each share of overhead, (workers, shares); if `together`, all
    workers have the same share.
    """
    rng = np.random.default_rng(0)
    shares = np.where(told, posterior @ SHARES, _typical(posterior))
    plain_times = mean(replace(run, times=run.times * run.lasting).at_even(shares))
    drawn = [_draw(posterior, together, rng) for _ in range(_DRAWS)]
    if not together:
        # Where sizes tell nothing, workers may as well have the same overhead in seconds.
        for i in range(0, _DRAWS, 2):
            seconds = rng.uniform(0, _MOST_OVERHEAD) * plain_times.min()
            drawn[i] = np.where(told, drawn[i], seconds / plain_times)
    gain = _gain(run, drawn, rng)
    return Comparison(gain, _possible(run, shares, drawn[:_FEW_DRAWS]), plain_times, shares, told)


def _gain(run: Iterations, drawn: list[Floats], rng: np.random.Generator) -> Estimate:
    longest = run.weights * run.longest
    plains = [run.weights * np.fmax.reduce(run.at_even(shares), axis=1) for shares in drawn]
    value = float(np.median([plain.sum() for plain in plains]) / longest.sum())
    draws = []
    for plain in plains:
        # Other iterations of the same run would have had other noise.
        rows = resampled(len(plain), _BLOCK, rng)
        draws.append(plain[rows].sum() / longest[rows].sum())
    gain = Estimate.of(np.array(draws), value)
    # Curves are not quite straight.
    spread = _CURVED * abs(value - 1)
    return Estimate(value, gain.low - spread, gain.high + spread)


def _possible(run: Iterations, shares: Floats, drawn: list[Floats]) -> Estimate:
    """Return how many times faster the best sizes would have been: at least once.

    The sizes of the run itself show that its time is possible.
    """
    value = _gain_of_best(run, shares)
    some = run.some(slice(None, None, max(1, len(run.times) // _FEW_ROWS)))
    typical = _gain_of_best(some, shares)
    draws = [value * _gain_of_best(some, one) / typical for one in drawn]
    return Estimate.of(np.maximum(draws, 1.0), value)


def _gain_of_best(run: Iterations, shares: Floats) -> float:
    best = run.best(shares)
    known = np.isfinite(best)
    if not known.any():
        return np.nan
    weights = run.weights[known]
    return max(1.0, float((weights * run.longest[known]).sum() / (weights * best[known]).sum()))


def _draw(posterior: Floats, together: bool, rng: np.random.Generator) -> Floats:
    """Draw a share for each worker, or one for all."""
    uniform = rng.random((1 if together else len(posterior), 1))
    at = (posterior.cumsum(axis=1) > uniform).argmax(axis=1)
    jitter = rng.uniform(-0.01, 0.01, len(posterior))
    drawn = SHARES[at]
    shares: Floats = np.clip(drawn + np.where(drawn > 0, jitter, 0.0), 0.0, 0.97)
    return shares


def resampled(count: int, block: int, rng: np.random.Generator) -> Ints:
    """Draw as many iterations again, in blocks of neighbours, which are alike."""
    block = min(block, count)
    starts = rng.integers(0, count - block + 1, -(-count // block))
    rows: Ints = (starts[:, None] + np.arange(block)).ravel()[:count]
    return rows


def _typical(posterior: Floats) -> Floats:
    """Return the median share of each worker."""
    shares: Floats = SHARES[(posterior.cumsum(axis=1) >= 0.5).argmax(axis=1)]
    return shares
