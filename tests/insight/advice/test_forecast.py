"""Forecasts: what plain BSP and the optimum would take, while a run goes on."""

import math

import numpy as np
import pytest

from evenstep.insight.advice.forecast import Forecast


def test_nothing_is_known_before_all_workers_were_seen():
    forecast = Forecast(2, total=32)
    assert math.isnan(forecast.plain) and math.isnan(forecast.optimum)
    forecast.observe(np.array([16, 0]), np.array([0.1, np.nan]))
    assert math.isnan(forecast.plain)


def test_balanced_run_still_knows_what_plain_bsp_would_take():
    forecast = Forecast(2, total=32)
    for sizes in ([16, 16], [20, 12], [24, 8], [24, 8]):
        forecast.observe(np.array(sizes), np.array([0.01, 0.02]) * sizes)
    assert forecast.plain == pytest.approx(0.32, rel=0.05)
    assert forecast.optimum == pytest.approx(0.21, rel=0.1)


def test_optimum_keeps_to_limits_and_plain_bsp_knows_none():
    forecast = Forecast(2, total=32)
    for caps, optimum in ((None, 0.13), ([12, 99], 0.40), ([12, 12], math.nan)):
        known = None if caps is None else np.array(caps)
        forecast.observe(np.array([16, 16]), np.array([0.08, 0.32]), known)
        assert forecast.optimum == pytest.approx(optimum, nan_ok=True)
        assert forecast.plain == pytest.approx(0.32)


def test_totals_that_no_job_has_are_not_split():
    forecast = Forecast(2, total=2**53)
    forecast.observe(np.array([2**52, 2**52]), np.array([0.1, 0.2]))
    assert math.isnan(forecast.plain) and math.isnan(forecast.optimum)


def test_sizes_that_follow_speeds_do_not_pass_for_overhead():
    """Sizes are proportional to speeds, so that times never change: lines would be flat."""
    rng = np.random.default_rng(0)
    following, line = Forecast(2, 32, proportional=True), Forecast(2, 32)
    for _ in range(60):
        speeds = np.array([100.0, 30.0]) * rng.uniform(0.7, 1.0, 2)
        sizes = np.maximum(1, np.round(32 * speeds / speeds.sum()))
        for forecast in (following, line):
            forecast.observe(sizes.astype(int), sizes / speeds)
    assert following.plain == pytest.approx(16 / (30 * 0.85), rel=0.15)
    assert line.plain < 0.8 * following.plain
