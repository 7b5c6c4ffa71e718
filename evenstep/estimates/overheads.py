"""The share of a worker's time that does not depend on its batch size, learned from size changes.

A batch of x samples takes ``t = s (w e + (1 - w) x)``: e is the even size, w the share of overhead
at that size, and s the slowness of the moment. Whenever a size changes, the times just before and
just after it tell something about w, however the worker's speed drifts over the run. A size that
changes because the speed did tells nothing: see `FOLLOWING`.
"""

from __future__ import annotations

import numpy as np

from evenstep.core import Bools, Floats, Ints
from evenstep.core.arrays import median

SHARES: Floats = np.concatenate([[0.0], np.arange(0.02, 0.95, 0.02)])
"""The shares of overhead that are considered."""

_SOME = 1 - SHARES[1:]
PRIOR: Floats = np.concatenate([[0.3], 0.7 * _SOME / _SOME.sum()])
"""Their probabilities before anything is seen: often none, otherwise rather a small one."""

_UP_TO = SHARES[1:] <= 0.3
FOLLOWING: Floats = np.concatenate([[0.8], 0.2 * _UP_TO / _UP_TO.sum()])
"""Those in a run whose sizes follow predicted speeds: times are proportional to sizes, as the
policy assumes, or have an overhead of up to 30 %."""
_FOLLOWING_NOISE = 0.15
"""Standard deviation of the logarithm of a time there, as far as it is not known."""

_FOLLOWING_WORKERS = 12
_NEAR = 8
"""Iterations before and after a change of size whose medians are compared."""
_JUST_BEFORE = 3
_MOST_STEPS = 48
"""Changes of size that are kept for each worker: those that tell most."""
_MOST_NOISE = 64
_LEAST_NOISE, _FIRST_NOISE = 0.003, 0.05
_CURVED = 0.02
"""Standard deviation of a change of the time, for each unit of the logarithm of the size, because
real curves are not straight."""
_FREEDOM = 4.0
"""Degrees of freedom of Student's distribution: a spike next to a change counts little."""
_MOST_AGAINST = -8.0
"""What one change may say against a share: it may come with a spike, or with another speed."""
_ALIKE = 4.0
"""Workers that the prior counts for, where what is learned of others helps with one."""
_CHANGED = 0.2
"""Change of the logarithm of the slowness since a change of size that halves what it tells."""


class Overheads:
    """Observes iterations, and returns what is known of the overheads; memory is bounded."""

    def __init__(self, num_workers: int) -> None:
        n = num_workers
        self._size = np.zeros(n)
        self._count = np.zeros(n, np.int64)
        """Times at the present size."""
        self._first = np.full((n, _NEAR), np.nan)
        self._last = np.full((n, _NEAR), np.nan)
        """Logarithms of the first and of the last times at the present size."""
        self._before = np.full((n, 3), np.nan)
        """The size before, its median logarithm of the time, and the number of times."""
        self._newest = np.full(n, np.nan)
        self._steps = np.full((n, _MOST_STEPS, 6), np.nan)
        """Changes: size, logarithm of the time and number of times before, and after."""
        self._weights = np.zeros((n, _MOST_STEPS))
        self._noise = np.full((n, _MOST_NOISE), np.nan)
        """Changes of the logarithm of the time while the size was the same."""
        self._num_noise = np.zeros(n, np.int64)
        self._same: list[Floats] = []
        """Times at the present sizes that are not in the arrays yet: they are added together."""

    def remapped(self, keep: Ints) -> Overheads:
        """Return what is known of other workers: at each position the old one, or -1 if new."""
        self._flush()
        other = Overheads(len(keep))
        stays = keep >= 0
        for name, rows in vars(other).items():
            if isinstance(rows, np.ndarray):
                rows[stays] = getattr(self, name)[keep[stays]]
        return other

    def observe(self, sizes: Floats, times: Floats) -> None:
        """Observe an iteration; a time is NaN where the worker had no batch."""
        known = np.isfinite(times)
        if known.all() and np.array_equal(sizes, self._size):
            self._same.append(times)
            if len(self._same) == _MOST_NOISE:
                self._flush()
            return
        self._flush()
        logs = np.log(np.where(known, times, 1.0))
        same = known & (sizes == self._size)
        self._add_noise(np.flatnonzero(same), logs)
        moved = np.flatnonzero(known & ~same)
        if len(moved):
            self._close(moved)
            self._size[moved] = sizes[moved]
        new = np.flatnonzero(known)
        counts = self._count[new]
        early = counts < _NEAR
        self._first[new[early], counts[early]] = logs[new[early]]
        self._last[new, counts % _NEAR] = logs[new]
        self._count[new] += 1
        self._newest[new] = logs[new]
        self._compare(new[counts + 1 == _NEAR])

    def interrupt(self) -> None:
        """Forget what the next iteration would be compared with: it is no neighbour."""
        self._flush()
        self._size[:], self._count[:] = 0.0, 0
        self._first[:], self._last[:] = np.nan, np.nan
        self._before[:], self._newest[:] = np.nan, np.nan

    def posterior(self, even: Floats) -> tuple[Floats, Bools]:
        """Return the probability of each share of overhead, (workers, shares).

        Also whether a worker's own changes of size tell something about it.
        """
        known = self._with_newest()
        evidence = known._evidence(even, None)
        shares = _normal(np.exp(evidence - evidence.max(axis=1, keepdims=True)) * PRIOR) @ SHARES
        evidence = known._evidence(even, shares)
        likelihood = np.exp(evidence - evidence.max(axis=1, keepdims=True))
        tells = np.ptp(evidence, axis=1) > 2
        posterior = _normal(likelihood * PRIOR)
        for _ in range(4):
            # Workers of one job are often alike: what is learned of many helps with each.
            among = _ALIKE * PRIOR + posterior[tells].sum(axis=0)
            posterior = _normal(likelihood * among)
        return posterior, tells

    def common(self, even: Floats) -> Floats:
        """Return the probability of each share of overhead, if all workers have the same."""
        evidence = self._with_newest()._evidence(even, None, _FOLLOWING_NOISE).sum(axis=0)
        # Even the first changes follow speeds a little: with many workers that would seem certain.
        evidence *= min(1.0, _FOLLOWING_WORKERS / len(even))
        common: Floats = _normal((np.exp(evidence - evidence.max()) * FOLLOWING)[None])[0]
        return common

    def _with_newest(self) -> Overheads:
        """Return all that is known, with the newest changes of size, however few times follow."""
        known = self.remapped(np.arange(len(self._size)))  # A copy.
        known._compare(np.flatnonzero(self._count < _NEAR))
        return known

    def _flush(self) -> None:
        """Add the times at the present sizes, of all workers."""
        if not self._same:
            return
        logs = np.log(np.stack(self._same))
        self._same = []
        length, workers = len(logs), np.arange(logs.shape[1])
        changes = np.diff(np.concatenate((self._newest[None], logs)), axis=0)
        steps = np.arange(length)[:, None]
        self._noise[workers, (self._num_noise + steps) % _MOST_NOISE] = changes
        self._num_noise += length
        counts = self._count + steps
        row, worker = np.nonzero(counts < _NEAR)
        self._first[worker, counts[row, worker]] = logs[row, worker]
        self._last[workers, counts[-_NEAR:] % _NEAR] = logs[-_NEAR:]
        self._count += length
        self._newest = logs[-1]
        self._compare(np.flatnonzero((counts[0] < _NEAR) & (self._count >= _NEAR)))

    def _add_noise(self, same: Ints, logs: Floats) -> None:
        places = self._num_noise[same] % _MOST_NOISE
        self._noise[same, places] = logs[same] - self._newest[same]
        self._num_noise[same] += 1

    def _close(self, moved: Ints) -> None:
        """Compare the sizes that end here with those before them, unless that has been done."""
        self._compare(moved[self._count[moved] < _NEAR])
        had = moved[self._count[moved] > 0]
        if len(had):
            levels, counts = median(self._last[had].T), np.minimum(self._count[had], _NEAR)
            # The size may change because the worker did, a few iterations ago.
            places = (self._count[had, None] - 1 - np.arange(_JUST_BEFORE)) % _NEAR
            newest = median(np.take_along_axis(self._last[had], places, axis=1).T)
            changed = np.abs(newest - levels) > _CHANGED / 2
            levels, counts = np.where(changed, (newest, np.minimum(counts, 2)), (levels, counts))
            self._before[had] = np.column_stack((self._size[had], levels, counts))
        self._first[moved], self._last[moved] = np.nan, np.nan
        self._count[moved] = 0

    def _compare(self, which: Ints) -> None:
        """Keep the change from the size before to the present one."""
        which = which[(self._count[which] > 0) & np.isfinite(self._before[which, 0])]
        if not len(which):
            return
        after = np.column_stack(
            (
                self._size[which],
                median(self._first[which].T),
                np.minimum(self._count[which], _NEAR),
            )
        )
        steps = np.concatenate((self._before[which], after), axis=1)
        weights = np.log(steps[:, 3] / steps[:, 0]) ** 2 / (1 / steps[:, 2] + 1 / steps[:, 5])
        least = self._weights[which].argmin(axis=1)
        better = weights > self._weights[which, least]
        self._steps[which[better], least[better]] = steps[better]
        self._weights[which[better], least[better]] = weights[better]

    def _evidence(self, even: Floats, shares: Floats | None, least_noise: float = 0.0) -> Floats:
        """Return the logarithm of the likelihood of each share, (workers, shares).

        By `shares`, about known, a worker may have become slower or faster since a change of size:
        its overhead may be another one now, and the change tells little.
        """
        used = (self._weights > 0).any(axis=0)
        known = self._weights[:, used] > 0
        steps = np.where(known[..., None], self._steps[:, used], 1.0)
        x0, log0, count0, x1, log1, count1 = np.moveaxis(steps, -1, 0)
        noise = np.maximum(self._noise_levels(), least_noise)[:, None]
        variance = noise**2 * (1 / count0 + 1 / count1) + (_CURVED * np.log(x1 / x0)) ** 2
        variance = np.where(known, variance, 1.0)
        tells = np.ones(x0.shape)
        if shares is not None:
            then = log1 - np.log(_work(x1, even[:, None], shares[:, None]))
            now = self._newest_level() - np.log(_work(np.maximum(self._size, 1.0), even, shares))
            tells = 1 / (1 + ((now[:, None] - then) / _CHANGED) ** 2)
        evidence = np.empty((len(even), len(SHARES)))
        for i, share in enumerate(SHARES.tolist()):
            wide = even[:, None]
            expected = np.log(_work(x1, wide, share) / _work(x0, wide, share))
            squares = np.where(known, (log1 - log0 - expected) ** 2 / variance, 0.0)
            each = -(_FREEDOM + 1) / 2 * np.log1p(squares / _FREEDOM)
            evidence[:, i] = (tells * np.maximum(each, _MOST_AGAINST)).sum(axis=1)
        return evidence

    def _newest_level(self) -> Floats:
        """Return the median logarithm of the last times."""
        level: Floats = np.nan_to_num(median(self._last.T))
        return level

    def _noise_levels(self) -> Floats:
        """Return the standard deviation of the logarithm of each worker's times."""
        enough: Bools = self._num_noise >= 6
        levels: Floats = np.full(len(enough), _FIRST_NOISE)
        if enough.any():
            each = median(np.abs(self._noise[enough]).T) * 1.4826 / np.sqrt(2)
            typical = float(np.median(each))
            levels[:] = typical
            levels[enough] = np.maximum(each, 0.5 * typical)
        levels[levels < _LEAST_NOISE] = _LEAST_NOISE
        return levels


def _normal(likely: Floats) -> Floats:
    """Return probabilities that add up to 1 in each row."""
    normal: Floats = likely / likely.sum(axis=1, keepdims=True)
    return normal


def _work(sizes: Floats, even: Floats, shares: Floats | float) -> Floats:
    work: Floats = shares * even + (1 - shares) * sizes
    return work
