"""The line at the end: what was measured, and estimates only of sizes that were not used."""

from __future__ import annotations

import re

import numpy as np
import pytest

from evenstep.core import Plan, Reports
from evenstep.policies.cautious import COMPARING
from evenstep.training.recorder import Summary

EVEN = np.array([30, 30])
UNEQUAL = np.array([15, 45])
SPEEDS = np.array([100.0, 300.0])


def summary_of(mode, sizes=EVEN, proposed=None, noise=0.0, num_iterations=20):
    """Sum up iterations on devices of these speeds, every other one slower by the noise."""
    summary = Summary(EVEN, mode)
    for k in range(num_iterations):
        reports = Reports.silent(k + 1, 2)
        reports = Reports(
            k + 1, sizes, sizes / SPEEDS * (1 + noise * (k % 2)),
            reports.cpu, reports.memory, reports.device_memory,
        )  # fmt: skip
        summary.observe(reports, Plan(0, 0, sizes, proposed=proposed))
    return summary.line()


def shares(line):
    return re.findall(r"(\d+)%", line)


def durations(line):
    return re.findall(r"[\d.]+ m?s\b", line)


@pytest.mark.parametrize("mode", ["off", "static", "balanced"])
@pytest.mark.parametrize(("noise", "time"), [(0.0, "300 ms"), (0.8, "428 ms")])
def test_plain_bsp_is_not_compared_with_itself(mode, noise, time):
    line = summary_of(mode, noise=noise)
    assert "30/30" in line
    # 300 ms on one worker and 100 ms on the other, a third of the sum of both.
    assert durations(line) == [time]
    assert shares(line) == ["33"]


def test_mode_off_is_plain_bsp_also_where_limits_make_sizes_uneven():
    line = summary_of("off", sizes=np.array([40, 20]))
    assert durations(line) == ["400 ms"]
    assert shares(line) == ["42"]


def test_observing_measures_even_sizes_and_estimates_the_proposed_ones_with_a_range():
    line = summary_of("observe", proposed=UNEQUAL)
    assert durations(line) == ["300 ms"]
    waiting, saved, low, high = map(int, shares(line))
    assert (waiting, saved) == (33, 50)
    assert 0 < low < 50 < high
    assert "15/45" in line


def test_observing_estimates_nothing_where_even_sizes_are_proposed():
    line = summary_of("observe", proposed=EVEN)
    assert durations(line) == ["300 ms"]
    assert shares(line) == ["33"]


def test_proposed_sizes_that_would_take_longer_are_not_called_a_gain():
    line = summary_of("observe", proposed=np.array([45, 15]))
    assert "45/15" in line
    assert "less" not in line


@pytest.mark.parametrize("mode", ["static", "balanced"])
def test_other_sizes_are_compared_with_plain_bsp_with_a_range(mode):
    # A wrapper may hold back sizes that a policy proposes in any mode.
    line = summary_of(mode, sizes=UNEQUAL, proposed=EVEN)
    assert "15/45" in line
    waiting, saved, low, high = map(int, shares(line))
    assert (waiting, saved) == (0, 50)
    assert 0 < low < 50 < high
    assert "estimated from fitted lines" in line


def blocks_of(speeds, spread, count=3):
    """Sum up a run with some blocks at even sizes, measured for comparison."""
    rng = np.random.default_rng(0)
    summary = Summary(EVEN)
    reports = Reports.silent(0, 2)
    for k in range(40 * count):
        plan = Plan(1, 0, EVEN, COMPARING) if k % 40 >= 24 else Plan(0, 0, UNEQUAL, "speeds")
        times = plan.sizes / speeds * np.exp(spread * rng.standard_normal(2))
        silent = Reports.silent(k + 1, 2)
        reports = Reports(k + 1, plan.sizes, times, silent.cpu, silent.memory, silent.device_memory)
        summary.observe(reports, plan)
    # The last block is complete once an iteration follows it.
    summary.observe(reports, Plan(2, 0, UNEQUAL))
    return summary.line()


def test_blocks_at_even_sizes_are_the_comparison_where_there_are_any():
    line = blocks_of(SPEEDS, spread=0.01)
    saved, low, high = map(int, shares(line)[1:])
    assert saved == 50
    assert 48 <= low <= 50 <= high <= 52
    assert "measured against 3 blocks at even sizes" in line


def test_differences_within_the_noise_are_not_called_a_gain_or_a_loss():
    # 150 ms with uneven sizes, and with even ones too.
    line = blocks_of(np.array([200.0, 300.0]), spread=0.3)
    assert "no difference from plain BSP to be seen (-" in line
    assert "blocks at even sizes" in line


def test_too_few_iterations_give_no_values():
    line = summary_of("off", num_iterations=5)
    assert durations(line) == shares(line) == []


def test_spikes_are_not_called_a_loss():
    # Every fourth iteration takes three times as long, whatever the sizes are.
    summary = Summary(EVEN)
    sizes = np.array([28, 32])
    for k in range(60):
        silent = Reports.silent(k + 1, 2)
        times = sizes / 300 * (3 if k % 4 == 0 else 1)
        reports = Reports(k + 1, sizes, times, silent.cpu, silent.memory, silent.device_memory)
        summary.observe(reports, Plan(0, 0, sizes))
    assert "no difference from plain BSP to be seen (-" in summary.line()
