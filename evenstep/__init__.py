"""Evenstep sizes each worker's batch so that all workers finish their iteration together.

    measure  ->  predict  ->  plan  ->  apply

This package holds the pure half, predict and plan, and loads no framework: reports go into a
`Balancer`, plans come out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenstep.balancer import Balancer
from evenstep.coordination import InProcessCoordinator, Session
from evenstep.core.limits import Limits
from evenstep.core.plan import Advice, Plan
from evenstep.core.report import Report, Reports, Usage
from evenstep.errors import EvenstepError
from evenstep.policies import make_policy
from evenstep.predictors import make_predictor

if TYPE_CHECKING:
    from evenstep.manager.connecting import connect

__version__ = "0.1.0"

__all__ = [
    "Advice",
    "Balancer",
    "EvenstepError",
    "InProcessCoordinator",
    "Limits",
    "Plan",
    "Report",
    "Reports",
    "Session",
    "Usage",
    "__version__",
    "connect",
    "make_policy",
    "make_predictor",
]


def __getattr__(name: str) -> Any:
    # The client of the manager is the one name that needs more than numpy.
    if name != "connect":
        raise AttributeError(f"module 'evenstep' has no attribute {name!r}")
    from evenstep.manager.connecting import connect

    return connect
