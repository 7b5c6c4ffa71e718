"""Runs on a trace are compared over the same seconds of it."""

import numpy as np
import pytest

from evenstep.simulator.clusters.cluster_b import HOUR, LEVEL, usage_trace
from evenstep.simulator.engine.comparison import Comparison
from evenstep.simulator.engine.scheme_specs import parse_scheme_specs
from reproduction.parts import Parts
from reproduction.scheme_times import Timed, over, time_schemes, window_after
from reproduction.window import Window

SMALL = Comparison("B", total=32)
NARX = "lb-bsp:proportional,predictor=narx:start=30"


def quiet(share, text):
    pass


def test_scheme_that_is_twice_as_fast_is_so_however_the_load_changes():
    # Ten seconds without load, ten with a load that leaves a tenth.
    slow = [*np.arange(1.0, 11.0), 20.0]
    fast = [*np.arange(0.5, 10.5, 0.5), 15.0, 20.0]
    window = Window(0, 20)
    assert window.updates(slow) == 11
    assert window.updates(fast) == 22
    assert window.per_update(fast) == pytest.approx(0.5 * window.per_update(slow))
    assert fast[10] / 11 != pytest.approx(0.5 * slow[10] / 11)


def test_update_at_an_edge_counts_in_part():
    assert Window(1, 4).updates([2.0, 6.0]) == pytest.approx(0.5 + 0.5)


def test_iterations_are_counted_whole():
    window = Window(1, 3, "iteration")
    assert window.updates([1.0, 3.0, 7.0, 9.0]) == 2
    assert window.per_update([1.0, 3.0, 7.0, 9.0]) == 3.0
    assert [window.has(k, 0.0) for k in range(4)] == [False, True, True, False]
    assert window.is_over(3, 0.0)


def test_hour_and_levels_are_those_of_the_trace():
    trace = usage_trace("m4.2xlarge-0")
    assert trace.repeat == HOUR
    assert trace.at.tolist() == np.arange(0.0, HOUR, LEVEL).tolist()


def test_all_schemes_have_the_same_seconds(tmp_path):
    window = Window(2.0, 6.0)
    made = time_schemes(
        "x", SMALL, "sequential-bsp,backup,ssp,flexrr", window, (0, 1), Parts(tmp_path), quiet
    )
    assert list(made) == ["bsp", "sequential-bsp", "backup", "ssp", "flexrr"]
    for runs in made.values():
        assert [run.updates * run.per_update for run in runs] == pytest.approx([4.0, 4.0])
    assert over(made, "backup", "bsp") < 1


def test_run_goes_on_until_the_window_is_over():
    (bsp,) = parse_scheme_specs("bsp")
    times = SMALL.times(bsp, 0, until=3.0)
    assert times[-2] < 3.0 <= times[-1]


def test_window_begins_when_the_slowest_seed_has_learned():
    window = window_after(SMALL, NARX, 30, (0, 1), LEVEL)
    _, narx = parse_scheme_specs(NARX)
    learned = [SMALL.times(narx, seed, until=60.0)[29] for seed in (0, 1)]
    assert window.start % 60 == 0
    assert window.start - 60 < max(learned) <= window.start
    assert window.end == window.start + LEVEL


def test_median_over_seeds_is_of_ratios():
    times = {"a": [Timed(1, 2.0), Timed(1, 9.0), Timed(1, 3.0)], "bsp": [Timed(1, 4.0)] * 3}
    assert over(times, "a", "bsp") == 0.75
