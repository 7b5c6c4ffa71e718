"""Estimates: the times of plain BSP and of the optimum, the gain, and the slowest worker.

Every view takes its figures from here: the summary of a training, `watch`, the dashboard, reports,
advice and the demo.
"""

from evenstep.estimates.estimates import (
    CLEAR,
    Estimate,
    Estimates,
    Straggler,
    Window,
    without_nan,
)
from evenstep.estimates.estimator import Estimator, estimates_of, follow, follows_speeds

__all__ = [
    "CLEAR",
    "Estimate",
    "Estimates",
    "Estimator",
    "Straggler",
    "Window",
    "estimates_of",
    "follow",
    "follows_speeds",
    "without_nan",
]
