"""The filter of `equal_finish`, against the formulas of algorithms.md worker by worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from statistics import median

import numpy as np
import pytest

from evenstep.core import to_arrays
from evenstep.core.rows import SEAL
from evenstep.policies.finish_filter import FinishFilter


@dataclass
class Worker:
    """One worker, written like the formulas of algorithms.md."""

    x: float = 0.0
    l: float = 0.0  # noqa: E741
    b: float = 0.0
    Pll: float = 0.0
    Plb: float = 0.0
    Pbb: float = 0.0
    sg: float = 0.05
    v: float = 0.05**2
    up: float = 0.0
    down: float = 0.0
    last: list[float] = field(default_factory=list)

    def learn_noise(self, x_used: float, t: float) -> None:
        """First half: transport to the size used, and learn the noise where it is the same."""
        if not self.last:
            return
        d = x_used - self.x
        self.Pll += 2 * d * self.Plb + d**2 * self.Pbb
        self.Plb += d * self.Pbb
        self.Pbb += (0.5 * self.b * d / self.x) ** 2
        self.l, self.x = max(self.l + self.b * d, 0.05 * t), x_used
        self.rests = d == 0
        if self.rests:
            step = min((t - self.last[-1]) ** 2 / 2, 4 * (self.sg * self.l) ** 2) / self.l**2
            self.v += 0.05 * (step - self.v)

    def correct(self, x_used: float, t: float, typical_v: float) -> None:
        """Second half: correct level and slope by the time, and re-open them at an alarm."""
        if not self.last:
            self.x, self.l, self.b = x_used, t, t / x_used
            self.Pll, self.Plb, self.Pbb = (0.05 * t) ** 2, 0.0, (0.6 * t / x_used) ** 2
            self.last = [t, t, t]
            return
        self.Pll += (0.002 * self.l) ** 2
        S = self.Pll + (self.sg * self.l) ** 2
        r = t - self.l
        z = r / sqrt(S)
        bounded = min(max(z, -3), 3)
        self.up = max(0, self.up + bounded - 1)
        self.down = max(0, self.down - bounded - 1)
        if self.rests:
            self.sg = sqrt(min(max(self.v, 0.5 * typical_v, 0.003**2), 0.2**2))
        if z > 3:
            r = 0.0
        elif z < -3:
            r = -3 * sqrt(S)
        Kl, Kb = self.Pll / S, self.Plb / S
        self.l += Kl * r
        self.b += Kb * r
        self.Pbb -= Kb * self.Plb
        self.Plb *= 1 - Kl
        self.Pll *= 1 - Kl
        self.last = [*self.last[1:], t]
        if self.up >= 6 or self.down >= 6:
            self.l = median(self.last)
            self.Pll, self.Plb = (self.sg * self.l) ** 2 / 2, 0.0
            self.b = max(self.b, 0.3 * self.l / self.x)
            self.Pbb = max(self.Pbb, (0.3 * self.l / self.x) ** 2)
            self.up = self.down = 0.0
        self.b = min(max(self.b, 0.05 * self.l / self.x), self.l / self.x)


def test_the_filter_is_that_of_algorithms_md():
    rng = np.random.default_rng(0)
    n = 6
    a, b = rng.uniform(0.1, 1.0, n), rng.uniform(0.005, 0.05, n)
    ours, theirs = FinishFilter.fresh(n), [Worker() for _ in range(n)]
    sizes, alarms = rng.integers(8, 64, n), 0
    for k in range(300):
        if k % 7 == 0:
            sizes = np.where(rng.random(n) < 0.5, rng.integers(8, 64, n), sizes)
        slowdown = np.where((k > 150) & (np.arange(n) < 2), 1.6, 1.0)
        noise = np.exp(0.03 * rng.standard_normal(n)) * np.where(rng.random(n) < 0.03, 2.0, 1.0)
        times = (a + b * sizes) * slowdown * noise
        before = ours.level
        ours = ours.observe(sizes, times)
        for worker, x, t in zip(theirs, sizes.tolist(), times.tolist(), strict=True):
            worker.learn_noise(x, t)
        typical = median(worker.v for worker in theirs)
        for worker, x, t in zip(theirs, sizes.tolist(), times.tolist(), strict=True):
            worker.correct(x, t, typical)
        alarms += int(np.sum(np.abs(ours.level / before - 1) > 0.3)) if k > 10 else 0
        for name, symbol in [
            ("size", "x"),
            ("level", "l"),
            ("slope", "b"),
            ("level_var", "Pll"),
            ("cov", "Plb"),
            ("slope_var", "Pbb"),
            ("noise", "sg"),
            ("diff_var", "v"),
            ("rise", "up"),
            ("fall", "down"),
            ("last", "last"),
        ]:
            expected = [getattr(worker, symbol) for worker in theirs]
            np.testing.assert_allclose(
                getattr(ours, name), expected, rtol=1e-7, atol=1e-13, err_msg=f"{name} at {k}"
            )
    assert alarms > 0
    assert ours.seen.all()


def observed(*observations, workers=1):
    known = FinishFilter.fresh(workers)
    for sizes, times in observations:
        known = known.observe(np.atleast_1d(sizes), np.atleast_1d(np.array(times, float)))
    return known


def test_a_first_time_might_be_all_overhead_or_none_of_it():
    known = observed((32, 1.6))
    assert known.times_at(
        np.array(
            [
                32,
            ]
        )
    ).tolist() == [1.6]
    assert known.slope.tolist() == [0.05]
    assert known.offsets() == pytest.approx([0.0], abs=1e-15)
    assert known.uncertainty() == pytest.approx([0.05])


def test_two_sizes_show_how_much_is_overhead():
    # t = 1 + 0.01 x; after one observation, half the samples seem to take half the time.
    known = observed((32, 1.32), (64, 1.64), (64, 1.64), (32, 1.32), (32, 1.32))
    assert known.times_at(np.array([64])) == pytest.approx([1.64], rel=0.02)
    assert known.offsets() == pytest.approx([1.0], rel=0.05)


def test_one_slow_time_is_a_spike_and_changes_nothing_known():
    calm = [(32, 1.0)] * 20
    known, after = observed(*calm), observed(*calm, (32, 3.0))
    assert after.level.tolist() == known.level.tolist()
    assert after.slope.tolist() == known.slope.tolist()


def test_a_worker_that_stays_slow_is_known_to_be_within_three_iterations():
    # Each counts 3 deviations at most, minus a slack of 1: 2 + 2 + 2 raise the alarm.
    calm = [(32, 1.0)] * 20
    levels = [observed(*calm, *[(32, 3.0)] * k).level[0] for k in range(1, 4)]
    assert levels == pytest.approx([1.0, 1.0, 3.0])


def test_a_change_opens_the_slope_again():
    calm = [(32, 1.0), (64, 1.1)] * 20
    before, after = observed(*calm), observed(*calm, *[(64, 3.0)] * 3)
    assert before.slope[0] < 0.2 * before.level[0] / 64
    assert after.slope[0] == pytest.approx(0.3 * 3.0 / 64)


def test_silent_workers_stay_as_they_are():
    both = observed(([32, 32], [1.0, 2.0]), ([32, 32], [1.1, 2.1]), workers=2)
    one = both.observe(np.array([48, 0]), np.array([1.5, np.nan]))
    neither = both.observe(np.array([0, 0]), np.array([np.nan, np.nan]))
    for name, array in to_arrays(both).items():
        if name == SEAL:
            continue
        assert to_arrays(one)[name][1].tolist() == array[1].tolist()
        assert to_arrays(neither)[name].tolist() == array.tolist()
    assert one.size.tolist() == [48.0, 32.0]
    assert one.level[0] != both.level[0]


def test_a_worker_never_seen_is_like_the_median_of_the_others():
    times = [0.32, 0.64, np.nan, 2.56]
    known = observed(([32, 32, 0, 32], times), workers=4)
    filled = known.filled(np.array([32, 32, 10, 32]))
    assert known.seen.tolist() == [True, True, False, True]
    # 0.01, 0.02 and 0.08 s per sample: 0.02, and 0.2 s for its 10 samples.
    assert filled.times_at(np.array([32, 32, 10, 32])) == pytest.approx([0.32, 0.64, 0.2, 2.56])
    assert filled.times_at(np.array([32, 32, 20, 32]))[2] == pytest.approx(0.4)


def test_a_worker_opened_again_believes_its_next_time():
    known = observed(*[(32, 1.0)] * 20)
    again = known.reopened(np.array([True])).observe(np.array([32]), np.array([2.5]))
    assert again.level == pytest.approx([2.5], rel=0.02)
    kept = known.reopened(np.array([False])).observe(np.array([32]), np.array([2.5]))
    assert kept.level.tolist() == known.level.tolist()
