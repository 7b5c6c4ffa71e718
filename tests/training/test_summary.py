"""The line at the end: what was measured, and estimates only of sizes that were not used."""

from __future__ import annotations

import re

import numpy as np
import pytest

from evenstep.core import Plan
from evenstep.runlog import Header, IterationRow
from evenstep.training.recorder import Summary

EVEN = np.array([30, 30])
UNEQUAL = np.array([15, 45])
SPEEDS = np.array([100.0, 300.0])


def summary_in(mode):
    return Summary(
        Header("measured", "job", ["w0", "w1"], 60, "equal_finish", "none", settings={"mode": mode})
    )


def observe(summary, k, sizes, times, **plan):
    row = IterationRow(k, plan=0, start=0.0, batch_sizes=sizes, times=times)
    summary.observe(row, Plan(0, 0, sizes, **plan))


def summary_of(mode, sizes=EVEN, proposed=None, noise=0.0, num_iterations=20):
    """Sum up iterations on devices of these speeds, every other one slower by the noise."""
    summary = summary_in(mode)
    for k in range(num_iterations):
        observe(summary, k, sizes, sizes / SPEEDS * (1 + noise * (k % 2)), proposed=proposed)
    return summary.line()


def shares(line):
    return [float(share) for share in re.findall(r"(-?[\d.]+)%", line)]


def durations(line):
    return re.findall(r"[\d.]+ m?s\b", line)


def gains(line):
    [found] = re.findall(r"([\d.]+) \(([\d.]+) to ([\d.]+)\) times faster than plain BSP", line)
    return tuple(map(float, found))


@pytest.mark.parametrize("mode", ["off", "static", "balanced"])
@pytest.mark.parametrize(("noise", "time"), [(0.0, "300 ms"), (0.8, "420 ms")])
def test_plain_bsp_is_not_compared_with_itself(mode, noise, time):
    line = summary_of(mode, noise=noise)
    assert "30/30" in line
    # 300 ms on one worker and 100 ms on the other, a third of the sum of both.
    assert durations(line) == [time]
    assert shares(line) == [33.3]


def test_mode_off_is_plain_bsp_also_where_limits_make_sizes_uneven():
    line = summary_of("off", sizes=np.array([40, 20]))
    assert durations(line) == ["400 ms"]
    assert shares(line) == [41.7]


def test_observing_measures_even_sizes_and_estimates_the_best_ones_with_a_range():
    line = summary_of("observe", proposed=UNEQUAL)
    assert durations(line) == ["300 ms"]
    waiting, saved, low, high = shares(line)
    assert waiting == 33.3
    # Without any overhead one half; how much overhead there is, even sizes do not show.
    assert 0 < low < saved < high
    assert low < 50 < high
    assert "would use batch sizes 15/45; the best sizes could save" in line


def test_observing_estimates_nothing_where_even_sizes_are_proposed():
    line = summary_of("observe", proposed=EVEN)
    assert durations(line) == ["300 ms"]
    assert shares(line) == [33.3]


@pytest.mark.parametrize("mode", ["static", "balanced"])
def test_other_sizes_are_compared_with_plain_bsp_with_a_range(mode):
    # A wrapper may hold back sizes that a policy proposes in any mode.
    line = summary_of(mode, sizes=UNEQUAL, proposed=EVEN)
    assert "15/45" in line
    gain, low, high = gains(line)
    assert 1 < low < gain < high
    assert low < 2.0 < high


def blocks_of(speeds, spread, count=3):
    """Sum up a run with some blocks at even sizes."""
    rng = np.random.default_rng(0)
    summary = summary_in("balanced")
    for k in range(40 * count):
        sizes = EVEN if k % 40 >= 36 else UNEQUAL
        observe(summary, k, sizes, sizes / speeds * np.exp(spread * rng.standard_normal(2)))
    return summary.line()


def test_blocks_at_even_sizes_make_the_range_narrow():
    gain, low, high = gains(blocks_of(SPEEDS, spread=0.01))
    # In 8 of the last 60 iterations sizes were even, with 300 ms, and in the others 150 ms.
    assert gain == pytest.approx(300 / ((8 * 300 + 52 * 150) / 60), rel=0.02)
    assert low > 0.88 * gain and high < 1.12 * gain


def test_differences_within_the_noise_are_not_called_a_gain_or_a_loss():
    # 150 ms with uneven sizes, and with even ones too.
    line = blocks_of(np.array([200.0, 300.0]), spread=0.3)
    assert "No clear difference from plain BSP" in line


def test_too_few_iterations_give_no_values():
    line = summary_of("off", num_iterations=4)
    assert durations(line) == shares(line) == []


def test_a_defect_of_the_estimates_does_not_end_a_training(caplog, monkeypatch):
    summary = summary_in("balanced")
    monkeypatch.setattr(summary._estimator, "take", lambda row: 1 / 0)
    for k in range(9):
        observe(summary, k, EVEN, EVEN / SPEEDS)
    assert (
        summary.line() == "evenstep: no summary, as it failed (ZeroDivisionError: division by zero)"
    )
    assert caplog.text.count("the summary failed") == 1
    assert summary.figures() == {}
