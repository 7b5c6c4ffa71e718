"""The figures of a comparison: intervals of medians, and which scheme is called the best."""

import numpy as np
import pytest

from evenstep.simulator.engine.comparison_figures import (
    CONFIDENCE,
    best_schemes,
    coverage,
    seeds_left_out,
    summary,
)
from evenstep.simulator.engine.run import smoothed

MEDIAN = np.log(2.0)
"""Of the exponential distribution."""


def interval(values):
    return summary([{"seed": i, "time": value} for i, value in enumerate(values)])["intervals"][
        "time"
    ]


@pytest.mark.parametrize("num_seeds", [3, 6, 9, 20])
def test_interval_covers_the_median_as_often_as_it_says(num_seeds):
    rng = np.random.default_rng(0)
    intervals = np.array([interval(rng.exponential(size=num_seeds)) for _ in range(4000)])
    covered = np.mean((intervals[:, 0] <= MEDIAN) & (intervals[:, 1] >= MEDIAN))
    # Two standard deviations of the share of 4000 are at most 0.014.
    assert covered == pytest.approx(coverage(num_seeds, seeds_left_out(num_seeds)), abs=0.015)


@pytest.mark.parametrize("num_seeds", range(6, 40))
def test_interval_leaves_out_as_many_seeds_as_confidence_allows(num_seeds):
    left_out = seeds_left_out(num_seeds)
    assert coverage(num_seeds, left_out) >= CONFIDENCE > coverage(num_seeds, left_out + 1)


def test_what_was_not_reached_is_later_than_everything():
    assert interval([3.0, None, 1.0, 2.0]) == [1.0, None]
    assert interval([None, None]) == [None, None]
    # Of nine seeds one is left out at each end.
    assert interval([None, 8, 7, 6, 5, 4, 3, 2, 1]) == [2, 8]


def scheme(label, low, median, high, name="time_over_bsp"):
    return {"scheme": label, "medians": {name: median}, "intervals": {name: [low, high]}}


BSP = scheme("bsp", 1.0, 1.0, 1.0)
CASES = {
    "clear": ([BSP, scheme("asp", 0.4, 0.5, 0.6), scheme("lb-bsp", 0.2, 0.3, 0.39)], ["lb-bsp"]),
    "overlap": (
        [BSP, scheme("asp", 0.2, 0.5, 0.6), scheme("lb-bsp", 0.2, 0.3, 0.39)],
        ["asp", "lb-bsp"],
    ),
    "touch": ([BSP, scheme("asp", 0.9, 0.95, 1.0)], ["bsp", "asp"]),
    "equal": ([BSP, scheme("lb-bsp", 1.0, 1.0, 1.0)], ["bsp", "lb-bsp"]),
    "missed by some seeds": ([BSP, scheme("asp", 0.2, 0.3, None)], ["bsp", "asp"]),
    "missed by most seeds": ([BSP, scheme("asp", 0.2, None, None)], ["bsp"]),
    "missed by all": ([scheme("bsp", None, None, None)], []),
}


@pytest.mark.parametrize(("schemes", "best"), CASES.values(), ids=CASES)
def test_scheme_is_the_best_if_no_other_interval_overlaps(schemes, best):
    assert best_schemes(schemes, "time_over_bsp") == best


def test_highest_accuracy_is_the_best():
    name = "final_accuracy"
    schemes = [scheme("bsp", 0.90, 0.91, 0.92, name), scheme("asp", 0.95, 0.96, 0.97, name)]
    assert best_schemes(schemes, name) == ["asp"]


def test_single_lucky_evaluation_does_not_reach_the_target():
    noisy = [0.90, 0.91, 0.96, 0.92, 0.91, 0.92]
    assert max(noisy) > 0.95 > max(smoothed(noisy))
    assert smoothed(noisy)[-1] == pytest.approx(np.mean(noisy[1:]))
