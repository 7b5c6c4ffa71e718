"""Records, interfaces, exact split, planner and session: pure, and numpy only.

The records and interfaces that everything else works with are imported from here.
"""

from evenstep.core.arrays import Bools, Floats, Ints, as_floats, as_ints, frozen, require
from evenstep.core.limits import UNLIMITED, Limits, check_feasible
from evenstep.core.plan import Advice, Decision, Plan, gradient_weight
from evenstep.core.policy import Policy, View, even_sizes, fits, keep_current, predict_times
from evenstep.core.predictor import Predictor, Trainable
from evenstep.core.report import Report, Reports, Usage
from evenstep.core.rows import (
    SEAL,
    Arrays,
    SavedState,
    as_array,
    from_arrays,
    inner_arrays,
    remap_rows,
    sealed,
    to_arrays,
)
from evenstep.core.short_form import require_whole
from evenstep.core.split import (
    LARGEST_TOTAL,
    makespan,
    split_affine,
    split_monotone,
    split_proportional,
)
from evenstep.core.trainer import Trainer, TrainInBackground, TrainNow

__all__ = [
    "Advice",
    "Arrays",
    "Bools",
    "Decision",
    "Floats",
    "Ints",
    "LARGEST_TOTAL",
    "Limits",
    "Plan",
    "Policy",
    "Predictor",
    "Report",
    "Reports",
    "SEAL",
    "SavedState",
    "TrainInBackground",
    "TrainNow",
    "Trainable",
    "Trainer",
    "UNLIMITED",
    "Usage",
    "View",
    "as_array",
    "as_floats",
    "as_ints",
    "check_feasible",
    "even_sizes",
    "fits",
    "from_arrays",
    "frozen",
    "gradient_weight",
    "inner_arrays",
    "keep_current",
    "makespan",
    "predict_times",
    "remap_rows",
    "require",
    "require_whole",
    "sealed",
    "split_affine",
    "split_monotone",
    "split_proportional",
    "to_arrays",
]
