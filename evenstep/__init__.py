"""Evenstep sizes each worker's batch so that all workers finish their iteration together.

    measure  ->  predict  ->  plan  ->  apply

This package holds the pure half, predict and plan, and loads no framework: reports go into a
`Planner`, plans come out.
"""

import typing as _typing

from evenstep.core import Advice, Limits, Plan, Report, Reports, Usage
from evenstep.core.coordinator import InProcessCoordinator
from evenstep.core.planner import Planner
from evenstep.core.session import Session
from evenstep.errors import EvenstepError
from evenstep.policies import make_policy
from evenstep.predictors import make_predictor

if _typing.TYPE_CHECKING:
    from evenstep.manager.client import connect

__version__ = "0.1.0"

__all__ = [
    "Advice",
    "EvenstepError",
    "InProcessCoordinator",
    "Limits",
    "Plan",
    "Planner",
    "Report",
    "Reports",
    "Session",
    "Usage",
    "__version__",
    "connect",
    "make_policy",
    "make_predictor",
]


def __getattr__(name: str) -> _typing.Any:
    # The client of the manager is the one name that needs more than numpy.
    if name == "connect":
        from evenstep.manager.client import connect

        return connect
    hint = ""
    if name == "Balancer":
        hint = ": it is called Planner now, and the one for DDP is evenstep.pytorch.Balancer"
    raise AttributeError(f"module 'evenstep' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    """Return the public names, the dunder names and the submodules that are loaded."""
    return sorted({*__all__, *(name for name in globals() if not _is_hidden(name))})


def _is_hidden(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")
