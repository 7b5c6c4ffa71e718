"""Estimates: what plain BSP and the optimum would take, what is gained, and who is slow.

Every view takes its figures from here: the summary of a training, `watch`, the dashboard, reports,
advice and the demo.
"""

from evenstep.estimates.estimates import (
    CLEAR,
    COVERED,
    Estimate,
    Estimates,
    Straggler,
    Window,
    without_nan,
)
from evenstep.estimates.estimator import Estimator, estimates_of, follow, follows_speeds

__all__ = [
    "CLEAR",
    "COVERED",
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
