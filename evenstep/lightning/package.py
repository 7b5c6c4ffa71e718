"""The packages of Lightning, which is published under two names."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

NAMES = {"lightning.pytorch": "lightning.fabric", "pytorch_lightning": "lightning_fabric"}
"""The two names of the package, each with that of Fabric, on which it is built."""


def _choose() -> str:
    """Return the name under which the script has imported Lightning, or one that is installed."""
    loaded = [name for name in NAMES if name in sys.modules]
    if loaded:
        return loaded[0]
    is_other = find_spec("lightning") is None and find_spec("pytorch_lightning") is not None
    return "pytorch_lightning" if is_other else "lightning.pytorch"


Callback: Any = import_module(_choose()).Callback


def package_of(trainer: Any) -> Any:
    """Return the package that a Trainer comes from; its own class may be one of the user's."""
    return import_module(_name_of(trainer))


def fabric_of(trainer: Any, module: str) -> Any:
    """Return a module of the Fabric that the package of a Trainer is built on."""
    return import_module(f"{NAMES[_name_of(trainer)]}.{module}")


def _name_of(trainer: Any) -> str:
    modules = [base.__module__ for base in type(trainer).__mro__]
    return next(name for name in NAMES for module in modules if module.startswith(name))
