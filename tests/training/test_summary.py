"""The line at the end: what was measured, and estimates only of sizes that were not used."""

from __future__ import annotations

import re

import numpy as np
import pytest

from evenstep.core import Plan, Reports
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


def test_observing_measures_even_sizes_and_estimates_the_proposed_ones():
    line = summary_of("observe", proposed=UNEQUAL)
    assert durations(line) == ["300 ms", "150 ms"]
    assert shares(line) == ["33", "50"]
    assert "15/45" in line


def test_observing_estimates_nothing_where_even_sizes_are_proposed():
    line = summary_of("observe", proposed=EVEN)
    assert durations(line) == ["300 ms"]
    assert shares(line) == ["33"]


def test_proposed_sizes_that_would_take_longer_are_not_called_a_gain():
    line = summary_of("observe", proposed=np.array([45, 15]))
    assert durations(line) == ["300 ms", "450 ms"]
    assert shares(line) == ["33", "50"]
    assert "less" not in line


@pytest.mark.parametrize("mode", ["static", "balanced"])
def test_other_sizes_are_compared_with_plain_bsp(mode):
    # A wrapper may hold back sizes that a policy proposes in any mode.
    line = summary_of(mode, sizes=UNEQUAL, proposed=EVEN)
    assert "15/45" in line
    assert shares(line) == ["0", "33", "50"]


def test_too_few_iterations_give_no_values():
    line = summary_of("off", num_iterations=5)
    assert durations(line) == shares(line) == []
