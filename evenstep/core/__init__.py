"""The core: records, interfaces, exact split, planner and session. Pure, and numpy only.

All other packages import the records and interfaces from here.
"""

from evenstep.core.arrays import Bools, Floats, Ints, as_floats, as_ints, frozen, require
from evenstep.core.limits import UNLIMITED, Limits, check_feasible
from evenstep.core.plan import Advice, Decision, Plan
from evenstep.core.policy import Policy, even_sizes, fits, keep_current, predict_times
from evenstep.core.predictor import Predictor, Trainable
from evenstep.core.report import Report, Reports, Usage
from evenstep.core.trainer import Trainer, TrainInBackground, TrainNow
from evenstep.core.view import View

__all__ = [
    "Advice",
    "Bools",
    "Decision",
    "Floats",
    "Ints",
    "Limits",
    "Plan",
    "Policy",
    "Predictor",
    "Report",
    "Reports",
    "TrainInBackground",
    "TrainNow",
    "Trainable",
    "Trainer",
    "UNLIMITED",
    "Usage",
    "View",
    "as_floats",
    "as_ints",
    "check_feasible",
    "even_sizes",
    "fits",
    "frozen",
    "keep_current",
    "predict_times",
    "require",
]
